//! The date of an answer, made once a second for each thread; and that of the log.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;

thread_local! {
    static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// The time as the common log format has it, in UTC: `06/Nov/1994:08:49:37 +0000`.
pub(crate) fn of_log() -> String {
    // `Sun, 06 Nov 1994 08:49:37 GMT`
    let date = HttpDate::from(SystemTime::now()).to_string();
    let parts = [&date[5..7], &date[8..11], &date[12..16], &date[17..25]];
    let [day, month, year, time] = parts;
    format!("{day}/{month}/{year}:{time} +0000")
}

/// Append it.
pub(crate) fn write(out: &mut Vec<u8>) {
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    DATE.with_borrow_mut(|(made, text)| {
        if *made != second || text.is_empty() {
            (*made, *text) = (second, HttpDate::from(now).to_string());
        }
        out.extend_from_slice(text.as_bytes());
    });
}
