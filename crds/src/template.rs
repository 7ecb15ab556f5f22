//! Text with placeholders: topics, client ids, user names and payloads. Percent signs mark them, because `{{ }}` belongs to
//! Helm and `${ }` to Flux. A template is parsed once; an unknown placeholder is an error, never text on the wire.

use std::fmt::Write as _;

/// What a placeholder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placeholder {
    /// `%i`, `%{number}`: the client's number.
    Number,
    /// `%c`, `%{clientId}`: the client identifier.
    ClientId,
    /// `%u`, `%{username}`: the user name.
    Username,
    /// `%s`, `%{sequence}`: the client's own message number within its publish entry, from 0.
    Sequence,
    /// `%{group}`: the group's name.
    Group,
    /// `%{shard}`: the completion index of the worker that runs the client.
    Shard,
}

const SHORT: [(char, Placeholder); 4] =
    [('i', Placeholder::Number), ('c', Placeholder::ClientId), ('u', Placeholder::Username), ('s', Placeholder::Sequence)];

const LONG: [(&str, Placeholder); 6] = [
    ("number", Placeholder::Number),
    ("clientId", Placeholder::ClientId),
    ("username", Placeholder::Username),
    ("sequence", Placeholder::Sequence),
    ("group", Placeholder::Group),
    ("shard", Placeholder::Shard),
];

/// One piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text as it stands.
    Literal(String),
    /// Something to fill in.
    Placeholder(Placeholder),
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

/// What placeholders are filled with. A field that a template does not name may be left empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Values<'a> {
    /// The client's number.
    pub number: u64,
    /// The client identifier.
    pub client_id: &'a str,
    /// The user name.
    pub username: &'a str,
    /// The message's number.
    pub sequence: u64,
    /// The group's name.
    pub group: &'a str,
    /// The completion index.
    pub shard: u32,
}

/// A placeholder that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown placeholder \"{0}\": known are %i, %c, %u, %s, %{{number}}, %{{clientId}}, %{{username}}, %{{sequence}}, %{{group}}, %{{shard}}, and %% for a percent sign"
)]
pub struct UnknownPlaceholder(pub String);

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// When a percent sign is followed by anything that is not a placeholder.
    pub fn parse(text: &str) -> Result<Self, UnknownPlaceholder> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            literal.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            let (placeholder, length) = match after.chars().next() {
                Some('%') => {
                    literal.push('%');
                    rest = &after[1..];
                    continue;
                }
                Some('{') => {
                    let end = after.find('}').ok_or_else(|| UnknownPlaceholder(format!("%{after}")))?;
                    let name = &after[1..end];
                    let found = LONG.iter().find(|(known, _)| *known == name).map(|(_, placeholder)| *placeholder);
                    (found.ok_or_else(|| UnknownPlaceholder(format!("%{{{name}}}")))?, end + 1)
                }
                Some(letter) => {
                    let found = SHORT.iter().find(|(known, _)| *known == letter).map(|(_, placeholder)| *placeholder);
                    (found.ok_or_else(|| UnknownPlaceholder(format!("%{letter}")))?, letter.len_utf8())
                }
                None => return Err(UnknownPlaceholder("%".into())),
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(Part::Placeholder(placeholder));
            rest = &after[length..];
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self { parts })
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether the placeholder occurs.
    pub fn has(&self, placeholder: Placeholder) -> bool {
        self.parts.contains(&Part::Placeholder(placeholder))
    }

    /// Whether the text is the same whatever it is filled with.
    pub fn is_literal(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Literal(_)))
    }

    /// Appends the filled text to `out`.
    pub fn render_into(&self, out: &mut String, values: &Values<'_>) {
        for part in &self.parts {
            // Writing to a String cannot fail.
            let _ = match part {
                Part::Literal(text) => out.write_str(text),
                Part::Placeholder(Placeholder::Number) => write!(out, "{}", values.number),
                Part::Placeholder(Placeholder::ClientId) => out.write_str(values.client_id),
                Part::Placeholder(Placeholder::Username) => out.write_str(values.username),
                Part::Placeholder(Placeholder::Sequence) => write!(out, "{}", values.sequence),
                Part::Placeholder(Placeholder::Group) => out.write_str(values.group),
                Part::Placeholder(Placeholder::Shard) => write!(out, "{}", values.shard),
            };
        }
    }

    /// The filled text.
    pub fn render(&self, values: &Values<'_>) -> String {
        let mut out = String::new();
        self.render_into(&mut out, values);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled_in_its_short_and_long_form() {
        let values = Values { number: 7, client_id: "c7", username: "u7", sequence: 9, group: "g", shard: 3 };
        for (text, filled) in [
            ("bench/%i", "bench/7"),
            ("%c/%u/%s", "c7/u7/9"),
            ("%{number}%{clientId}%{username}%{sequence}%{group}%{shard}", "7c7u79g3"),
            ("100%%", "100%"),
            ("", ""),
        ] {
            assert_eq!(Template::parse(text).unwrap().render(&values), filled, "{text}");
        }
    }

    #[test]
    fn an_unknown_placeholder_is_an_error_that_names_it() {
        for (text, named) in [("a/%x", "%x"), ("%{foo}", "%{foo}"), ("%", "%"), ("%{number", "%{number"), ("%é", "%é")] {
            assert_eq!(Template::parse(text).unwrap_err().0, named, "{text}");
        }
    }
}
