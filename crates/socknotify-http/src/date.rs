//! The date of an answer, made once a second for each thread.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;

thread_local! {
    static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
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
