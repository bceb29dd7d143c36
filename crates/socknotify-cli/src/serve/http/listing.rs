//! The page that shows what is in a directory.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All but what a path takes as it is.
const NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The same, of several names.
const PATH: &AsciiSet = &NAME.remove(b'/');

/// Something in a directory. In the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) is_directory: bool,
}

/// As it stands in a URL.
pub(super) fn encode(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// The page for a directory, whose path is without slashes at its ends.
pub(super) fn page(path: &str, entries: &[Entry]) -> String {
    let slash = if path.is_empty() { "" } else { "/" };
    let title = format!("Index of /{}{slash}", escape(path));
    let mut page = format!(
        "<!DOCTYPE html>\n<html>\n<head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body>\n<h1>{title}</h1>\n<ul>\n"
    );
    if !path.is_empty() {
        page.push_str("<li><a href=\"../\">../</a></li>\n");
    }
    for Entry { name, is_directory } in entries {
        let slash = if *is_directory { "/" } else { "" };
        let (link, text) = (utf8_percent_encode(name, NAME), escape(name));
        // Memory takes everything.
        let _ = writeln!(page, "<li><a href=\"{link}{slash}\">{text}{slash}</a></li>");
    }
    page.push_str("</ul>\n</body>\n</html>\n");
    page
}

/// As text in HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_links_and_never_markup() {
        let entry = |name: &str, is_directory| Entry {
            name: name.to_owned(),
            is_directory,
        };
        let page = page("a&b", &[entry("<c>?.txt", false), entry("d:/é", true)]);
        for expected in [
            "<h1>Index of /a&amp;b/</h1>",
            "<a href=\"../\">../</a>",
            "<a href=\"%3Cc%3E%3F.txt\">&lt;c&gt;?.txt</a>",
            "<a href=\"d%3A%2F%C3%A9/\">d:/é/</a>",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        assert_eq!(encode("a b/c?"), "a%20b/c%3F");
    }
}
