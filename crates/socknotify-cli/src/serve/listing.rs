//! The page that shows what is in a directory.

use std::borrow::Cow;
use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// All but what a path takes as it is.
const NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The same, of several names.
const PATH: &AsciiSet = &NAME.remove(b'/');

/// As it stands in a URL.
pub(crate) fn encode(path: &[u8]) -> String {
    percent_encode(path, PATH).to_string()
}

/// The page for a directory, whose path has no slashes at its ends: names, and whether each is a directory.
pub(crate) fn page(path: &[u8], names: &[(Vec<u8>, bool)]) -> Vec<u8> {
    let slash = if path.is_empty() { "" } else { "/" };
    let title = format!("Index of /{}{slash}", escape(path));
    let mut page = format!(
        "<!DOCTYPE html>\n<html>\n<head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body>\n<h1>{title}</h1>\n<ul>\n"
    );
    if !path.is_empty() {
        page += "<li><a href=\"../\">../</a></li>\n";
    }
    for (name, is_directory) in names {
        let slash = if *is_directory { "/" } else { "" };
        let (link, text) = (percent_encode(name, NAME), escape(name));
        // Memory takes everything.
        let _ = writeln!(page, "<li><a href=\"{link}{slash}\">{text}{slash}</a></li>");
    }
    page += "</ul>\n</body>\n</html>\n";
    page.into_bytes()
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

    #[test]
    fn names_are_links_and_never_markup() {
        let names = ["<c>?.txt".as_bytes(), "d:/é".as_bytes(), b"\xff.txt"];
        let names = names.map(|name| (name.to_vec(), name.starts_with(b"d")));
        let page = String::from_utf8(page(b"a&b", &names)).expect("text");
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
    fn an_empty_root_has_a_page() {
        let page = String::from_utf8(page(b"", &[])).expect("text");
        assert!(page.ends_with("<ul>\n</ul>\n</body>\n</html>\n"), "{page}");
    }
}
