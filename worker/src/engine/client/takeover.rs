//! Takeovers that the broker does not tell. When two clients use one identifier, the broker disconnects the older one at each
//! connect of the other (MQTT 5.0 section 3.1.4); reason code 0x8E need not be sent, and MQTT 3.1.1 has none. Seen from a
//! client: closed without a word soon after it was ready, and again after each reconnect.
//!
//! Not taken for one: a broker that restarts (attempts fail in between), a load balancer that drops everyone (many clients are
//! lost at once), and a broker that closes over what the client just sent, such as a publish that is not allowed (closed right
//! after the first packet of a connection).

use crate::engine::cause::Cause;

const MS: u64 = 1_000_000;
/// A connection that lasted longer was not ended by a rival that wants to come back.
const SOON: u64 = 10_000 * MS;
/// A server that does not like a packet closes within this time.
const PROVOKED: u64 = 100 * MS;
/// Connections of one client that end like this, one after the other, before it is taken for a takeover.
const CLOSURES: u8 = 3;
/// Losses within one or two of these times happen at once.
const AT_ONCE: u64 = 50 * MS;

/// The connections that the clients of a thread lose without a word.
#[derive(Debug)]
pub struct Losses {
    /// So many at once are no coincidence.
    many: u32,
    slot: u64,
    recent: u32,
    before: u32,
    /// When many were lost at once.
    wave: u64,
}

impl Losses {
    /// Of so many clients.
    pub fn new(clients: usize) -> Self {
        Self { many: u32::try_from(clients / 5).unwrap_or(u32::MAX).saturating_add(3), slot: 0, recent: 0, before: 0, wave: 0 }
    }

    fn add(&mut self, now: u64) {
        let slot = now / AT_ONCE;
        if slot != self.slot {
            self.before = if slot == self.slot + 1 { self.recent } else { 0 };
            (self.slot, self.recent) = (slot, 0);
        }
        self.recent += 1;
        if self.recent + self.before >= self.many {
            self.wave = now;
        }
    }

    /// Whether a loss was one of many.
    fn had_company(&self, at: u64) -> bool {
        self.wave != 0 && self.wave.abs_diff(at) <= 2 * AT_ONCE
    }
}

/// What a client remembers to notice a rival.
#[derive(Debug, Default)]
pub(super) struct Rivalry {
    ready: u64,
    /// When the first packet after that was written; 0 before.
    asked: u64,
    /// When the last of the closures was.
    closed: u64,
    closures: u8,
    /// Failed attempts of all clients by then.
    failed: u64,
}

impl Rivalry {
    pub(super) fn on_ready(&mut self, now: u64) {
        (self.ready, self.asked) = (now, 0);
    }

    #[inline]
    pub(super) fn on_written(&mut self, now: u64) {
        if self.asked == 0 {
            self.asked = now;
        }
    }

    /// Judges the end of a connection that was ready. `failed` are the attempts of all clients that failed so far, `attempt` is
    /// how many pods of this index there were before: of two that run at once the later one holds out longer.
    pub(super) fn judge(&mut self, cause: Cause, losses: &mut Losses, failed: u64, attempt: u16, now: u64) -> Cause {
        let provoked = self.asked != 0 && now - self.asked < PROVOKED;
        let wordless = matches!(cause, Cause::ClosedByPeer | Cause::Reset);
        if wordless {
            losses.add(now);
        }
        if !wordless || provoked || now - self.ready >= SOON || losses.had_company(now) {
            self.closures = 0;
            return cause;
        }
        // Of the last closure more is known by now.
        if self.failed != failed || losses.had_company(self.closed) {
            self.closures = 0;
        }
        (self.closed, self.failed) = (now, failed);
        self.closures += 1;
        let most = CLOSURES + u8::try_from(attempt).unwrap_or(u8::MAX).min(4);
        if self.closures >= most { Cause::TakenOver } else { cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: Cause = Cause::ClosedByPeer;

    /// Connections that end after so many milliseconds, a second apart; `failed` more attempts have failed before each.
    fn ends(lives: &[(u64, Cause)], failed: u64, asked: Option<u64>, attempt: u16) -> Vec<Cause> {
        let (mut rivalry, mut losses) = (Rivalry::default(), Losses::new(100));
        let mut now = MS;
        let end = |(i, (life, cause)): (usize, &(u64, Cause))| {
            now += 1_000 * MS;
            rivalry.on_ready(now);
            if let Some(asked) = asked {
                rivalry.on_written(now + asked * MS);
                rivalry.on_written(now + (asked + 1) * MS);
            }
            now += life * MS;
            rivalry.judge(*cause, &mut losses, failed * i as u64, attempt, now)
        };
        lives.iter().enumerate().map(end).collect()
    }

    #[test]
    fn wordless_ends_soon_after_each_other_are_a_takeover() {
        let lives = [(60_000, CLOSED), (500, CLOSED), (900, Cause::Reset), (500, CLOSED), (500, CLOSED)];
        assert_eq!(ends(&lives[..4], 0, None, 0), [CLOSED, CLOSED, Cause::Reset, Cause::TakenOver]);
        assert_eq!(ends(&lives[..4], 0, Some(0), 0)[3], Cause::TakenOver);
        assert_eq!(ends(&lives, 0, None, 1)[3..], [CLOSED, Cause::TakenOver], "a replaced pod holds out longer");
    }

    #[test]
    fn restarts_refusals_and_long_lives_are_none() {
        let short = [(450, CLOSED); 5];
        assert_eq!(ends(&short, 3, None, 0), [CLOSED; 5], "attempts failed in between");
        assert_eq!(ends(&short, 0, Some(400), 0), [CLOSED; 5], "right after a packet");
        assert_eq!(ends(&[(450, CLOSED), (450, CLOSED), (20_000, CLOSED), (450, CLOSED)], 0, None, 0), [CLOSED; 4]);
        let told = Cause::ServerShutdown;
        assert_eq!(ends(&[(450, CLOSED), (450, CLOSED), (450, told), (450, CLOSED)], 0, None, 0), [CLOSED, CLOSED, told, CLOSED]);
    }

    #[test]
    fn clients_that_are_lost_together_have_no_rival_but_those_that_are_lost_one_by_one_do() {
        for (apart, cause) in [(MS, CLOSED), (40 * MS, Cause::TakenOver)] {
            let mut losses = Losses::new(100);
            let mut clients: Vec<Rivalry> = (0..100).map(|_| Rivalry::default()).collect();
            let mut last = Vec::new();
            for round in 0..3 {
                let begin = (1 + round * 10) * 1_000 * MS;
                last.clear();
                for (i, client) in clients.iter_mut().enumerate() {
                    client.on_ready(begin);
                    last.push(client.judge(CLOSED, &mut losses, 0, 0, begin + 2_000 * MS + i as u64 * apart));
                }
            }
            assert_eq!(last, [cause; 100], "{apart} ns apart");
        }
    }
}
