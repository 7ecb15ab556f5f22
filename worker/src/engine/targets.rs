//! Where clients connect to: the endpoints' addresses, spread over the clients.

use super::cause::Cause;
use std::net::SocketAddr;

/// Addresses of the endpoints, or why there are none.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// One for each endpoint of the plan, in its order.
    pub endpoints: Vec<Result<Vec<SocketAddr>, Cause>>,
}

impl Targets {
    /// Spreads clients over the endpoints and over all addresses of each; another try takes the next address. Returns the
    /// endpoint's index too.
    ///
    /// # Errors
    /// Why the client's endpoint cannot be connected to.
    pub fn pick(&self, rank: u64, failures: u64) -> Result<(usize, SocketAddr), Cause> {
        let count = self.endpoints.len().max(1) as u64;
        let endpoint = (rank % count) as usize;
        match self.endpoints.get(endpoint) {
            Some(Ok(addresses)) if !addresses.is_empty() => {
                Ok((endpoint, addresses[((rank / count + failures) % addresses.len() as u64) as usize]))
            }
            Some(Err(cause)) => Err(*cause),
            _ => Err(Cause::DnsFailed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_spread_over_endpoints_and_over_the_addresses_of_each() {
        let address = |n: u8| SocketAddr::from(([10, 0, 0, n], 1883));
        let targets = Targets { endpoints: vec![Ok(vec![address(1), address(2)]), Ok(vec![address(3)])] };
        let picked: Vec<_> = (0..6).map(|rank| targets.pick(rank, 0).unwrap()).collect();
        assert_eq!(
            picked,
            [(0, address(1)), (1, address(3)), (0, address(2)), (1, address(3)), (0, address(1)), (1, address(3))]
        );
        assert_eq!(targets.pick(0, 1), Ok((0, address(2))), "another try takes the next address");
        assert_eq!(Targets::default().pick(0, 0), Err(Cause::DnsFailed));
    }
}
