//! [`file_response`]: what a request wants of a file, by its conditions and its range (RFC 9110, sections 13 and 14).

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{
    ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use httpdate::HttpDate;

use crate::head::number;
use crate::{Request, Response, ResponseBody};

/// How long ago the second in a date began, at least, before no other state of the file can have the same date: the
/// second itself, and as much again for systems whose time stamps lag, or are even seconds only.
const RESTED: Duration = Duration::from_secs(2);

/// The answer to a request for a file, by GET or HEAD: the file, the part of it that is asked for, or that the client has it already.
///
/// The answer has `ETag` and `Last-Modified`, which say which state of the file it is. A request may have conditions on these:
///
/// | the request has | and the file | status |
/// |---|---|---|
/// | `If-None-Match`, or else `If-Modified-Since` | is the one that the client has | 304 |
/// | `If-Match`, or else `If-Unmodified-Since` | is another one | 412 |
/// | `Range`, of one part | has some of it | 206 |
/// | `Range`, of one part | has none of it | 416 |
/// | `Range`, and `If-Range` | is another one | 200 |
///
/// Several ranges, and ranges of an empty file's last bytes, are answered with the whole file. The tag is made of the file's length and
/// the time of its last change, and on Unix of its number: there it is strong. Elsewhere it is weak, as files may differ that have all of that in common; a
/// client that has a part of one is sent all of it then.
///
/// Where the times of files are coarse, some milliseconds on Linux before 6.13, a file that is written in place may be answered
/// between two changes that have one time, and then they have one tag: write a new file, and rename it.
///
/// As [`ResponseBody::file`], the file is sent from where the system has it, and must not become shorter meanwhile.
///
/// # Errors
///
/// [`IsADirectory`](ErrorKind::IsADirectory), or [`InvalidInput`](ErrorKind::InvalidInput) if it is something else that is no file. The
/// system's, if the file's length cannot be had, or its position not be set.
///
/// # Examples
///
/// ```
/// use std::fs::File;
/// use std::io;
/// use socknotify_http::http::HeaderValue;
/// use socknotify_http::{Request, Response, file_response};
///
/// fn logo(request: &mut Request<'_>) -> io::Result<Response> {
///     let file = File::open("logo.svg")?;
///     file_response(request, file, HeaderValue::from_static("image/svg+xml"))
/// }
/// ```
#[doc(alias = "Range")]
#[doc(alias = "ETag")]
#[doc(alias = "sendfile")]
pub fn file_response(
    request: &Request<'_>,
    file: File,
    content_type: HeaderValue,
) -> io::Result<Response> {
    let metadata = file.metadata()?;
    match metadata.file_type() {
        it if it.is_file() => {}
        it if it.is_dir() => return Err(ErrorKind::IsADirectory.into()),
        _ => return Err(ErrorKind::InvalidInput.into()),
    }
    let state = State::of(&metadata, SystemTime::now());
    let (headers, length) = (request.headers(), metadata.len());
    let takes_part = *request.method() == Method::GET && state.is_that_of_range(headers);
    let wanted = only(headers, RANGE).filter(|_| takes_part);
    let part = wanted.and_then(|wanted| range(wanted, length));
    let status = state.check(headers);
    let mut answer = http::Response::builder().header(ETAG, state.tag);
    if let Some(date) = state.modified {
        answer = answer.header(LAST_MODIFIED, date.to_string());
    }
    let text = |status| format!("{status}\n").into();
    let answer = match (status, part) {
        (Some(status), _) => answer.status(status).body(text(status)),
        (None, Some(part)) if part.is_empty() => {
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            let answer = answer.header(CONTENT_RANGE, format!("bytes */{length}"));
            answer.status(status).body(text(status))
        }
        (None, part) => {
            if let Some(Range { start, end }) = part {
                let range = format!("bytes {start}-{}/{length}", end - 1);
                answer = answer.status(StatusCode::PARTIAL_CONTENT);
                answer = answer.header(CONTENT_RANGE, range);
            }
            let Range { start, end } = part.unwrap_or(0..length);
            let body = ResponseBody::file_part(file, start, end - start)?;
            let answer = answer.header(CONTENT_TYPE, content_type);
            answer.header(ACCEPT_RANGES, "bytes").body(body)
        }
    };
    answer.map_err(io::Error::other)
}

/// A header that is there once.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next()?.to_str().ok()?.trim();
    values.next().is_none().then_some(value)
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<HttpDate> {
    only(headers, name)?.parse().ok()
}

/// What tells one state of a file from another.
#[derive(Debug)]
struct State {
    /// With its quotation marks, and `W/` before them if it is weak.
    tag: String,
    modified: Option<HttpDate>,
    now: SystemTime,
}

impl State {
    fn of(file: &Metadata, now: SystemTime) -> Self {
        // HTTP has no earlier dates.
        let modified = file.modified().ok().filter(|it| *it >= UNIX_EPOCH);
        State {
            tag: tag(file),
            // A date that is still to come says nothing (RFC 9110, section 8.8.2.1).
            modified: modified.map(|it| it.min(now).into()),
            now,
        }
    }

    /// The status if the file is not to be sent, in the order of RFC 9110, section 13.2.2: a tag goes before a date.
    fn check(&self, headers: &HeaderMap) -> Option<StatusCode> {
        let is_later = |date| self.modified.is_some_and(|it| it > date);
        let is_other = match headers.contains_key(IF_MATCH) {
            true => !self.is_among(headers, IF_MATCH, false),
            false => date(headers, IF_UNMODIFIED_SINCE).is_some_and(is_later),
        };
        let is_known = match headers.contains_key(IF_NONE_MATCH) {
            true => self.is_among(headers, IF_NONE_MATCH, true),
            false => date(headers, IF_MODIFIED_SINCE)
                .is_some_and(|it| self.modified.is_some_and(|modified| modified <= it)),
        };
        let refused = is_other.then_some(StatusCode::PRECONDITION_FAILED);
        refused.or(is_known.then_some(StatusCode::NOT_MODIFIED))
    }

    /// Whether `If-Range` allows a part: the client has the other parts of this state. A date counts only if it is a strong validator
    /// (RFC 9110, section 8.8.2.2): a file that changed just now may change again and keep its date.
    fn is_that_of_range(&self, headers: &HeaderMap) -> bool {
        let has_date = || {
            let date = date(headers, IF_RANGE).filter(|it| self.modified == Some(*it));
            let age = date.and_then(|date| self.now.duration_since(date.into()).ok());
            age.is_some_and(|age| age >= RESTED)
        };
        let is_own = |tag: &str| tag == self.tag && tag.starts_with('"');
        !headers.contains_key(IF_RANGE) || only(headers, IF_RANGE).is_some_and(is_own) || has_date()
    }

    /// Whether a list of tags, in one header or several, has the file's, which has no comma. A strong comparison is one byte by byte: a
    /// tag that says that it is weak is equal to none.
    fn is_among(&self, headers: &HeaderMap, name: HeaderName, weakly: bool) -> bool {
        let own = self.tag.strip_prefix("W/").unwrap_or(&self.tag);
        let is_own = |tag: &str| match weakly {
            true => tag.strip_prefix("W/").unwrap_or(tag) == own,
            false => tag == self.tag && tag.starts_with('"'),
        };
        let values = headers.get_all(name).into_iter();
        let lists = values.filter_map(|it| it.to_str().ok());
        let mut tags = lists.flat_map(|it| it.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || is_own(tag))
    }
}

/// What changes whenever another file comes in the place of one, or its bytes change, also if its time is set back; but for two changes
/// within the precision of the system's times.
#[cfg(unix)]
fn tag(file: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt;

    let (length, device, number) = (file.len(), file.dev(), file.ino());
    let (changed, fraction) = (file.ctime(), file.ctime_nsec());
    format!("\"{length:x}-{device:x}-{number:x}-{changed:x}-{fraction:x}\"")
}

/// Files of one length and time may differ.
#[cfg(windows)]
fn tag(file: &Metadata) -> String {
    use std::os::windows::fs::MetadataExt;

    format!("W/\"{:x}-{:x}\"", file.len(), file.last_write_time())
}

/// The bytes of a file of this length that a `Range` header asks for: an empty range if it has none of them, and `None` if all of it is
/// to be sent. Of several ranges, none is taken: the whole file is an answer, too.
fn range(header: &str, length: u64) -> Option<Range<u64>> {
    let (unit, range) = header.split_once('=')?;
    let (first, last) = range.trim().split_once('-')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    if first.is_empty() {
        let count = number(last.as_bytes())?;
        // An empty file has no last bytes, and is no less than is wanted.
        return (count == 0 || length > 0).then(|| length.saturating_sub(count)..length);
    }
    let first = number(first.as_bytes())?;
    let last = match last {
        "" => u64::MAX,
        last => number(last.as_bytes())?,
    };
    (first <= last).then(|| first..last.saturating_add(1).min(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "Thu, 01 Jan 1970 00:16:39 GMT";
    const MODIFIED: &str = "Thu, 01 Jan 1970 00:16:40 GMT";
    const AFTER: &str = "Thu, 01 Jan 1970 00:16:41 GMT";

    /// A state of a file that was modified then, with this tag.
    fn state(tag: &str) -> State {
        State {
            tag: tag.to_owned(),
            modified: MODIFIED.parse().ok(),
            now: SystemTime::now(),
        }
    }

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        map
    }

    #[test]
    fn a_list_of_tags_is_compared_strongly_or_weakly() {
        for (list, strong, weak) in [
            ("*", true, true),
            ("\"a\"", true, true),
            ("\"b\", \"a\"", true, true),
            (" ,\"b\",,\"a\"", true, true),
            ("W/\"a\"", false, true),
            ("W/W/\"a\"", false, false),
            ("\"b,\", W/\"a\"", false, true),
            ("\"b\"", false, false),
            ("a", false, false),
            ("\"a", false, false),
            ("", false, false),
        ] {
            let headers = headers(&[(IF_MATCH, list)]);
            let is_among = |tag, weakly| state(tag).is_among(&headers, IF_MATCH, weakly);
            assert_eq!(is_among("\"a\"", false), strong, "{list}");
            assert_eq!(is_among("\"a\"", true), weak, "{list}");
            // A weak tag is the same as none where every byte counts.
            assert_eq!(is_among("W/\"a\"", false), list == "*", "{list}");
            assert_eq!(is_among("W/\"a\"", true), weak, "{list}");
        }
        let several = headers(&[(IF_MATCH, "\"b\""), (IF_MATCH, "\"a\"")]);
        assert!(state("\"a\"").is_among(&several, IF_MATCH, false));
    }

    #[test]
    fn a_tag_goes_before_a_date() {
        let (matches, none, since, not_since) = (
            IF_MATCH,
            IF_NONE_MATCH,
            IF_MODIFIED_SINCE,
            IF_UNMODIFIED_SINCE,
        );
        for (lines, status) in [
            (vec![], None),
            (vec![(&since, BEFORE)], None),
            (vec![(&since, "yesterday")], None),
            (vec![(&since, MODIFIED)], Some(304)),
            (vec![(&since, AFTER)], Some(304)),
            (vec![(&none, "\"b\""), (&since, AFTER)], None),
            (vec![(&none, "\"a\""), (&since, BEFORE)], Some(304)),
            (vec![(&not_since, BEFORE)], Some(412)),
            (vec![(&not_since, MODIFIED)], None),
            (vec![(&matches, "\"a\""), (&not_since, BEFORE)], None),
            (vec![(&matches, "\"b\""), (&not_since, AFTER)], Some(412)),
            (vec![(&matches, "W/\"a\"")], Some(412)),
            (vec![(&matches, "\"b\""), (&none, "\"a\"")], Some(412)),
            (vec![(&matches, "*"), (&none, "*")], Some(304)),
        ] {
            let lines: Vec<_> = lines.into_iter().map(|it| (it.0.clone(), it.1)).collect();
            let found = state("\"a\"").check(&headers(&lines));
            assert_eq!(found.map(|it| it.as_u16()), status, "{lines:?}");
        }
    }

    #[test]
    fn a_part_depends_on_the_very_same_file() {
        for (condition, holds) in [
            (MODIFIED, true),
            (AFTER, false),
            ("\"a\"", true),
            ("\"b\"", false),
            ("W/\"a\"", false),
            ("yesterday", false),
            // It is one tag, and no list.
            ("*", false),
            ("\"b\", \"a\"", false),
        ] {
            let headers = headers(&[(IF_RANGE, condition)]);
            assert_eq!(
                state("\"a\"").is_that_of_range(&headers),
                holds,
                "{condition}"
            );
        }
        let weak = headers(&[(IF_RANGE, "W/\"a\"")]);
        assert!(!state("W/\"a\"").is_that_of_range(&weak));
    }

    #[test]
    fn a_date_counts_once_the_file_can_no_longer_change_and_keep_it() {
        let modified = SystemTime::from(MODIFIED.parse::<HttpDate>().expect("a date"));
        let at = |now| {
            let holds = |condition| {
                let state = State {
                    now,
                    ..state("\"a\"")
                };
                state.is_that_of_range(&headers(&[(IF_RANGE, condition)]))
            };
            (holds(MODIFIED), holds("\"a\""))
        };
        assert_eq!(at(modified - Duration::from_secs(1)), (false, true));
        assert_eq!(at(modified + Duration::from_millis(1_999)), (false, true));
        assert_eq!(at(modified + RESTED), (true, true));
    }

    #[test]
    fn a_range_is_a_part_of_the_file_or_not_satisfiable() {
        for (header, expected) in [
            ("bytes=0-0", 0..1),
            ("bytes=2-4", 2..5),
            ("bytes=2-", 2..10),
            ("BYTES = 2-18446744073709551615", 2..10),
            ("bytes=-3", 7..10),
            ("bytes=-30", 0..10),
            ("bytes=9-9", 9..10),
        ] {
            assert_eq!(range(header, 10), Some(expected), "{header}");
        }
        let is_empty = |header, length| range(header, length).is_some_and(|it| it.is_empty());
        for header in ["bytes=10-", "bytes=18446744073709551615-", "bytes=-0"] {
            assert!(is_empty(header, 10), "{header}");
        }
        // RFC 9110, section 14.1.2: the last bytes of what is shorter are all of it.
        assert_eq!(range("bytes=-5", 0), None);
        assert!(is_empty("bytes=-0", 0) && is_empty("bytes=0-", 0));
    }

    #[test]
    fn what_is_no_single_range_is_ignored() {
        for header in [
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=4-2",
            "bytes=0-18446744073709551616",
            "bytes=0-1,4-5",
            "bytes=+1-2",
            "bytes=a-b",
            "lines=0-1",
            "bytes=1--2",
        ] {
            assert_eq!(range(header, 10), None, "{header}");
        }
    }

    #[test]
    fn a_time_that_has_no_date_is_left_out() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        let now = SystemTime::now();
        for (modified, has_date) in [
            (UNIX_EPOCH + Duration::from_millis(1_000_500), true),
            (now + Duration::from_secs(9000 * 365 * 86_400), true),
            (UNIX_EPOCH - Duration::from_secs(1), false),
        ] {
            // Some file systems have no such times.
            file.set_modified(modified)?;
            let metadata = file.metadata()?;
            if metadata.modified()? == modified {
                let state = State::of(&metadata, now);
                assert_eq!(state.modified.is_some(), has_date, "{modified:?}");
                assert!(state.modified.is_none_or(|it| SystemTime::from(it) <= now));
            }
        }
        Ok(())
    }
}
