//! A part of a file, as a client asks for it.

use std::ops::Range;

/// The one range of a `Range` header. Of several, none is taken: the whole file is an answer, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// From this byte to that one, or to the end.
    From(u64, Option<u64>),
    /// So many bytes at the end.
    Last(u64),
}

impl Wish {
    pub(super) fn parse(header: &str) -> Option<Self> {
        let (unit, range) = header.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (first, last) = range.trim().split_once('-')?;
        match (first, last) {
            ("", last) => Some(Wish::Last(number(last)?)),
            (first, "") => Some(Wish::From(number(first)?, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Wish::From(first, Some(last)))
            }
        }
    }

    /// The bytes of a file of this length. `None` if it has none of them.
    pub(super) fn within(self, length: u64) -> Option<Range<u64>> {
        let range = match self {
            Wish::From(first, last) => {
                let end = last.map_or(length, |last| last.saturating_add(1).min(length));
                first..end
            }
            Wish::Last(count) => length.saturating_sub(count)..length,
        };
        (!range.is_empty()).then_some(range)
    }
}

/// Digits, and nothing else. What is too large to be a number is beyond the end of any file.
fn number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_part_of_the_file_or_not_satisfiable() {
        for (header, expected) in [
            ("bytes=0-0", Some(0..1)),
            ("bytes=2-4", Some(2..5)),
            ("bytes=2-", Some(2..10)),
            ("BYTES = 2-99999999999999999999999", Some(2..10)),
            ("bytes=-3", Some(7..10)),
            ("bytes=-30", Some(0..10)),
            ("bytes=9-9", Some(9..10)),
            ("bytes=10-", None),
            ("bytes=99999999999999999999999-", None),
            ("bytes=-0", None),
        ] {
            let wish = Wish::parse(header).unwrap_or_else(|| panic!("{header}"));
            assert_eq!(wish.within(10), expected, "{header}");
        }
        assert_eq!(Wish::Last(1).within(0), None);
    }

    #[test]
    fn what_is_no_single_range_is_ignored() {
        for header in [
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=4-2",
            "bytes=0-1,4-5",
            "bytes=+1-2",
            "bytes=a-b",
            "lines=0-1",
            "bytes=1--2",
        ] {
            assert_eq!(Wish::parse(header), None, "{header}");
        }
    }
}
