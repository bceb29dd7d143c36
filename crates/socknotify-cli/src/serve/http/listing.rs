//! The page that shows what is in a directory.

use std::borrow::Cow;
use std::io::Write;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// All but what a path takes as it is.
const NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The same, of several names.
const PATH: &AsciiSet = &NAME.remove(b'/');

/// How much of a page is made at once, about.
const PART: usize = 32 * 1024;

/// What is in a directory, in the order of the names. There may be very many.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// One behind the other.
    names: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    begin: u32,
    length: u16,
    is_directory: bool,
}

impl Listing {
    /// Adds what has this name. One that is longer than any system's, or one too many, is left out.
    pub(crate) fn add(&mut self, name: &[u8], is_directory: bool) {
        if let (Ok(begin), Ok(length)) = (self.names.len().try_into(), name.len().try_into()) {
            self.names.extend_from_slice(name);
            self.entries.push(Entry {
                begin,
                length,
                is_directory,
            });
        }
    }

    /// It is complete.
    pub(crate) fn sort(mut self) -> Self {
        let names = &self.names;
        self.entries.sort_unstable_by_key(|entry| entry.name(names));
        self.names.shrink_to_fit();
        self.entries.shrink_to_fit();
        self
    }
}

impl Entry {
    fn name(self, names: &[u8]) -> &[u8] {
        &names[self.begin as usize..][..usize::from(self.length)]
    }
}

/// As it stands in a URL.
pub(super) fn encode(path: &[u8]) -> String {
    percent_encode(path, PATH).to_string()
}

/// The page for a directory, which is made as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Without slashes at its ends.
    path: Vec<u8>,
    listing: Arc<Listing>,
    next: Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Head,
    Entry(usize),
    End,
}

impl Page {
    pub(super) fn new(path: &[u8], listing: Arc<Listing>) -> Self {
        Page {
            path: path.to_owned(),
            listing,
            next: Next::Head,
        }
    }

    /// How long it is in all.
    pub(super) fn length(&self) -> u64 {
        let (mut page, mut part, mut length) = (self.clone(), Vec::new(), 0);
        loop {
            part.clear();
            page.write_part(&mut part);
            length += part.len() as u64;
            if part.is_empty() {
                return length;
            }
        }
    }

    /// Writes what comes next. Nothing, if that was all.
    pub(crate) fn write_part(&mut self, part: &mut Vec<u8>) {
        // Memory takes everything.
        let _ = match self.next {
            Next::Head => {
                self.next = Next::Entry(0);
                self.write_head(part)
            }
            Next::Entry(first) => {
                let Listing { names, entries } = &*self.listing;
                let mut next = first;
                while next < entries.len() && part.len() < PART {
                    let (name, slash) = (
                        entries[next].name(names),
                        if entries[next].is_directory { "/" } else { "" },
                    );
                    let (link, text) = (percent_encode(name, NAME), escape(name));
                    let _ = writeln!(part, "<li><a href=\"{link}{slash}\">{text}{slash}</a></li>");
                    next += 1;
                }
                self.next = match next < entries.len() {
                    true => Next::Entry(next),
                    false => Next::End,
                };
                match self.next {
                    Next::End => write!(part, "</ul>\n</body>\n</html>\n"),
                    _ => Ok(()),
                }
            }
            Next::End => Ok(()),
        };
    }

    fn write_head(&self, part: &mut Vec<u8>) -> std::io::Result<()> {
        let slash = if self.path.is_empty() { "" } else { "/" };
        let title = format!("Index of /{}{slash}", escape(&self.path));
        write!(
            part,
            "<!DOCTYPE html>\n<html>\n<head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
             <body>\n<h1>{title}</h1>\n<ul>\n"
        )?;
        match self.path.is_empty() {
            true => Ok(()),
            false => writeln!(part, "<li><a href=\"../\">../</a></li>"),
        }
    }
}

/// As text in HTML. What is no UTF-8 is shown as such; the link has it as it is.
fn escape(name: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(name);
    match text.contains(['&', '<', '>']) {
        false => text,
        true => text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(mut page: Page) -> String {
        let (length, mut text, mut part) = (page.length(), Vec::new(), Vec::new());
        loop {
            part.clear();
            page.write_part(&mut part);
            if part.is_empty() {
                break;
            }
            assert!(part.len() < PART + 2000);
            text.extend_from_slice(&part);
        }
        assert_eq!(text.len() as u64, length);
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn names_are_links_and_never_markup() {
        let mut listing = Listing::default();
        listing.add("d:/é".as_bytes(), true);
        listing.add(b"<c>?.txt", false);
        listing.add(b"\xff.txt", false);
        let page = whole(Page::new(b"a&b", listing.sort().into()));
        let mut position = 0;
        for expected in [
            "<h1>Index of /a&amp;b/</h1>",
            "<a href=\"../\">../</a>",
            "<a href=\"%3Cc%3E%3F.txt\">&lt;c&gt;?.txt</a>",
            "<a href=\"d%3A%2F%C3%A9/\">d:/é/</a>",
            "<a href=\"%FF.txt\">\u{fffd}.txt</a>",
        ] {
            let found = page.find(expected);
            let found = found.unwrap_or_else(|| panic!("{expected}: {page}"));
            assert!(found >= position, "{page}");
            position = found;
        }
        assert_eq!(encode(b"a b/c?"), "a%20b/c%3F");
    }

    #[test]
    fn a_long_page_is_made_in_parts() {
        let mut listing = Listing::default();
        for number in 0..10_000 {
            listing.add(format!("{number}").as_bytes(), false);
        }
        let page = whole(Page::new(b"", listing.sort().into()));
        assert_eq!(page.matches("<li>").count(), 10_000);
        assert!(page.ends_with("</html>\n"));
        let empty = whole(Page::new(b"", Arc::default()));
        assert!(empty.ends_with("<ul>\n</ul>\n</body>\n</html>\n"));
    }
}
