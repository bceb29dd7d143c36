//! The date of an answer, made once a second for each thread; and that of the log.

use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;

thread_local! {
    /// The header's line, and until when it is right.
    static DATE: RefCell<(Option<Instant>, String)> = const { RefCell::new((None, String::new())) };
}

/// The time as the common log format has it, in UTC: `06/Nov/1994:08:49:37 +0000`.
pub(crate) fn of_log() -> String {
    // `Sun, 06 Nov 1994 08:49:37 GMT`
    let date = HttpDate::from(SystemTime::now()).to_string();
    let (day, month, year, time) = (&date[5..7], &date[8..11], &date[12..16], &date[17..25]);
    format!("{day}/{month}/{year}:{time} +0000")
}

/// Call this with the line of an answer's date.
pub(crate) fn on_date(now: Instant, call: impl FnOnce(&str)) {
    DATE.with_borrow_mut(|(end, text)| {
        if end.is_none_or(|end| now >= end) {
            let date = SystemTime::now();
            let since = date.duration_since(UNIX_EPOCH).unwrap_or_default();
            let left = 1_000_000_000 - since.subsec_nanos();
            *end = now.checked_add(Duration::from_nanos(left.into()));
            *text = format!("date: {}\r\n", HttpDate::from(date));
        }
        call(text);
    });
}
