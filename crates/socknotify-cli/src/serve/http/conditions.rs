//! What a client knows of a file already, and what it wants done with that.

use std::time::{Duration, SystemTime};

use httpdate::HttpDate;

/// How long ago the second in a date began, at least, before no other state of the file can have the same date: the
/// second itself, and as much again for systems whose time stamps lag, or are even seconds only.
const RESTED: Duration = Duration::from_secs(2);

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Validators {
    /// With its quotation marks, and `W/` before them if it is weak.
    pub(super) tag: Option<String>,
    pub(super) modified: Option<HttpDate>,
}

/// The conditions of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Conditions {
    /// A list of tags, or `*`, as it was sent.
    pub(super) if_match: Option<String>,
    pub(super) if_unmodified_since: Option<HttpDate>,
    pub(super) if_none_match: Option<String>,
    pub(super) if_modified_since: Option<HttpDate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precondition {
    /// The file is to be sent.
    Send,
    /// The client has it already.
    NotModified,
    /// It is not the file that the client means.
    Failed,
}

impl Conditions {
    /// In the order of RFC 9110, section 13.2.2: a tag goes before a date.
    pub(super) fn evaluate(&self, file: &Validators) -> Precondition {
        let is_later_than = |date: HttpDate| file.modified.is_some_and(|modified| modified > date);
        let failed = match (&self.if_match, self.if_unmodified_since) {
            (Some(tags), _) => !lists(tags, file, Comparison::Strong),
            (None, Some(date)) => is_later_than(date),
            (None, None) => false,
        };
        if failed {
            return Precondition::Failed;
        }
        let is_known = match (&self.if_none_match, self.if_modified_since) {
            (Some(tags), _) => lists(tags, file, Comparison::Weak),
            (None, Some(date)) => file.modified.is_some() && !is_later_than(date),
            (None, None) => false,
        };
        match is_known {
            true => Precondition::NotModified,
            false => Precondition::Send,
        }
    }
}

/// What a part of a file depends on: the client has the other parts of this state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IfRange {
    Date(HttpDate),
    Tag(String),
    /// It is neither, and so no state of any file.
    Nonsense,
}

impl IfRange {
    pub(super) fn parse(header: &str) -> Self {
        let header = header.trim();
        match header.parse() {
            Ok(date) => IfRange::Date(date),
            Err(_) if header.starts_with('"') => IfRange::Tag(header.to_owned()),
            Err(_) => IfRange::Nonsense,
        }
    }

    /// A date counts only if it is a strong validator (RFC 9110, section 8.8.2.2): a file that changed just now may
    /// change again and keep its date.
    pub(super) fn holds(&self, file: &Validators, now: SystemTime) -> bool {
        match self {
            IfRange::Date(date) => {
                let age = now.duration_since(SystemTime::from(*date));
                file.modified == Some(*date) && age.is_ok_and(|age| age >= RESTED)
            }
            IfRange::Tag(tag) => file.tag.as_ref() == Some(tag),
            IfRange::Nonsense => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    /// Equal byte by byte: a tag that says that it is weak is equal to none.
    Strong,
    Weak,
}

/// Whether a list of tags has the file's.
fn lists(tags: &str, file: &Validators, comparison: Comparison) -> bool {
    let mut rest = tags.trim();
    if rest == "*" {
        return true;
    }
    let own = file.tag.as_deref();
    let (is_own_weak, own) = match own.and_then(|tag| tag.strip_prefix("W/")) {
        Some(tag) => (true, Some(tag)),
        None => (false, own),
    };
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (is_weak, tag) = match rest.strip_prefix("W/") {
            Some(tag) => (true, tag),
            None => (false, rest),
        };
        let end = tag.strip_prefix('"').and_then(|tag| tag.find('"'));
        // The end of the list, or what is no tag.
        let Some(end) = end else { return false };
        let (tag, others) = tag.split_at(end + 2);
        let is_comparable = !is_weak && !is_own_weak || comparison == Comparison::Weak;
        if is_comparable && own == Some(tag) {
            return true;
        }
        rest = others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "Thu, 01 Jan 1970 00:16:39 GMT";
    const MODIFIED: &str = "Thu, 01 Jan 1970 00:16:40 GMT";
    const AFTER: &str = "Thu, 01 Jan 1970 00:16:41 GMT";

    fn date(text: &str) -> Option<HttpDate> {
        text.parse().ok()
    }

    fn file() -> Validators {
        Validators {
            tag: Some("\"a\"".to_owned()),
            modified: date(MODIFIED),
        }
    }

    #[test]
    fn a_list_of_tags_is_compared_strongly_or_weakly() {
        for (tags, strong, weak) in [
            ("*", true, true),
            ("\"a\"", true, true),
            ("\"b\", \"a\"", true, true),
            (" ,\"b\",,\"a\"", true, true),
            ("W/\"a\"", false, true),
            ("\"b,\", W/\"a\"", false, true),
            ("\"b\"", false, false),
            ("a", false, false),
            ("\"a", false, false),
            ("", false, false),
        ] {
            assert_eq!(lists(tags, &file(), Comparison::Strong), strong, "{tags}");
            assert_eq!(lists(tags, &file(), Comparison::Weak), weak, "{tags}");
        }
    }

    #[test]
    fn a_weak_tag_is_the_same_as_none_where_every_byte_counts() {
        let file = Validators {
            tag: Some("W/\"a\"".to_owned()),
            modified: None,
        };
        for tags in ["\"a\"", "W/\"a\""] {
            assert!(!lists(tags, &file, Comparison::Strong), "{tags}");
            assert!(lists(tags, &file, Comparison::Weak), "{tags}");
            assert!(!IfRange::parse(tags).holds(&file, SystemTime::now()));
        }
    }

    #[test]
    fn a_tag_goes_before_a_date() {
        let tag = |text: &str| Some(text.to_owned());
        let evaluate = |if_match, unmodified, if_none_match, modified| {
            Conditions {
                if_match,
                if_unmodified_since: date(unmodified),
                if_none_match,
                if_modified_since: date(modified),
            }
            .evaluate(&file())
        };
        assert_eq!(evaluate(None, "", None, ""), Precondition::Send);
        assert_eq!(evaluate(None, "", None, BEFORE), Precondition::Send);
        assert_eq!(
            evaluate(None, "", None, MODIFIED),
            Precondition::NotModified
        );
        assert_eq!(evaluate(None, "", tag("\"b\""), AFTER), Precondition::Send);
        assert_eq!(
            evaluate(None, "", tag("\"a\""), BEFORE),
            Precondition::NotModified
        );
        assert_eq!(evaluate(None, BEFORE, None, ""), Precondition::Failed);
        assert_eq!(evaluate(None, MODIFIED, None, ""), Precondition::Send);
        assert_eq!(evaluate(tag("\"a\""), BEFORE, None, ""), Precondition::Send);
        assert_eq!(
            evaluate(tag("\"b\""), AFTER, None, ""),
            Precondition::Failed
        );
        assert_eq!(evaluate(tag("W/\"a\""), "", None, ""), Precondition::Failed);
        let both = evaluate(tag("\"b\""), "", tag("\"a\""), "");
        assert_eq!(both, Precondition::Failed);
        assert_eq!(
            evaluate(tag("*"), AFTER, tag("*"), BEFORE),
            Precondition::NotModified
        );
    }

    #[test]
    fn a_part_depends_on_the_very_same_file() {
        for (header, holds) in [
            (MODIFIED, true),
            (AFTER, false),
            ("\"a\"", true),
            ("\"b\"", false),
            ("W/\"a\"", false),
            ("yesterday", false),
        ] {
            let state = IfRange::parse(header);
            assert_eq!(state.holds(&file(), SystemTime::now()), holds, "{header}");
        }
    }

    #[test]
    fn a_date_counts_once_the_file_can_no_longer_change_and_keep_it() {
        let modified = SystemTime::from(date(MODIFIED).expect("a date"));
        let at = |now| {
            let (date, tag) = (IfRange::parse(MODIFIED), IfRange::parse("\"a\""));
            (date.holds(&file(), now), tag.holds(&file(), now))
        };
        assert_eq!(at(modified - Duration::from_secs(1)), (false, true));
        assert_eq!(at(modified + Duration::from_millis(1_999)), (false, true));
        assert_eq!(at(modified + RESTED), (true, true));
    }
}
