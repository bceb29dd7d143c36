//! One connection's requests and answers, in order.

use super::super::log::Log;
use super::super::tally::Reason;
use super::answer;
use super::file::FileRequest;
use super::request::{self, Method, Refusal, Request, Site, Target};

/// When there are so many bytes of answers, the next request waits until they are sent.
const ANSWERS_LIMIT: usize = 64 * 1024;

/// Where a client is. Between requests it has no memory.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    site: Site,
    /// What has come of the next request.
    kept: Vec<u8>,
    /// Whether there may be a whole request in what is kept.
    has_more_in_hand: bool,
    body: Option<Body>,
}

/// The body of a request, which is skipped, and then the request is answered.
#[derive(Debug)]
struct Body {
    left: u64,
    request: Request,
}

/// What has become of some bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) requests: u64,
    /// The last of these requests is for a file. The next one is heard when this one is answered.
    pub(crate) file: Option<Box<FileRequest>>,
    pub(crate) ending: Option<Ending>,
}

/// Why no request is answered any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client wants no more requests, or was sent `Connection: close`.
    Wanted,
    /// What else the client sends is not understood. It is counted for a reason, if that is the client's fault.
    Refused(Option<Reason>),
}

impl Conversation {
    pub(crate) fn new(site: Site) -> Self {
        Conversation {
            site,
            ..Conversation::default()
        }
    }

    /// Whether there is something to hear without a receive.
    pub(crate) fn has_more_in_hand(&self) -> bool {
        self.has_more_in_hand
    }

    pub(crate) fn is_within_request(&self) -> bool {
        self.body.is_some() || !self.kept.is_empty()
    }

    /// Puts what was kept where the next bytes are to follow. Tells its length.
    pub(crate) fn put_kept(&self, room: &mut [u8]) -> usize {
        room[..self.kept.len()].copy_from_slice(&self.kept);
        self.kept.len()
    }

    /// Answers the complete requests, and keeps the bytes after them. `bytes` begin with what was
    /// kept. `is_last` says whether a request is answered as the last one, if it is the newest, or is not. `stats` counts the
    /// requests that were answered here.
    pub(crate) fn hear(
        &mut self,
        bytes: &[u8],
        answers: &mut Vec<u8>,
        is_last: &dyn Fn(bool) -> bool,
        stats: &mut dyn FnMut(u64) -> String,
        log: &mut Log,
    ) -> Heard {
        let mut heard = Heard::default();
        let mut rest = bytes;
        self.has_more_in_hand = false;
        while heard.ending.is_none() {
            if answers.len() >= ANSWERS_LIMIT {
                self.has_more_in_hand = !rest.is_empty();
                break;
            }
            let complete = match self.next_request(&mut rest, answers) {
                Ok(Some(request)) => request,
                Ok(None) => break,
                Err(refusal) => {
                    log.answered("-", answer::refuse(answers, refusal));
                    heard.requests += u64::from(refusal == Refusal::BodyNotWanted);
                    heard.ending = Some(Ending::Refused(match refusal {
                        Refusal::BodyNotWanted => None,
                        Refusal::HeadTooLarge => Some(Reason::TooLarge),
                        _ => Some(Reason::Garbage),
                    }));
                    break;
                }
            };
            let persists = complete.persists && !is_last(rest.is_empty());
            heard.requests += 1;
            if !persists {
                heard.ending = Some(Ending::Wanted);
            }
            let connection = answer::connection(&complete, persists);
            match (complete.method, complete.target) {
                (Method::Get | Method::Head, Target::File(mut file)) => {
                    file.connection = connection;
                    file.line = complete.line;
                    heard.file = Some(file);
                    self.has_more_in_hand = !rest.is_empty();
                    break;
                }
                (method, target) => {
                    let stats = || stats(heard.requests);
                    let told = answer::write(answers, method, &target, connection, stats);
                    log.answered(&complete.line, told);
                }
            }
        }
        self.keep(rest, heard.ending);
        heard
    }

    /// The next request whose head and body are there.
    fn next_request(
        &mut self,
        rest: &mut &[u8],
        answers: &mut Vec<u8>,
    ) -> Result<Option<Request>, Refusal> {
        if self.body.is_none() {
            if rest.is_empty() {
                return Ok(None);
            }
            let Some((request, length)) = request::parse(rest, self.site)? else {
                return Ok(None);
            };
            *rest = &rest[length..];
            let left = request.body;
            if request.waits_to_continue && left > 0 && rest.is_empty() {
                answers.extend_from_slice(answer::CONTINUE);
            }
            self.body = Some(Body { left, request });
        }
        let Some(body) = &mut self.body else {
            return Ok(None);
        };
        let skipped = rest
            .len()
            .min(usize::try_from(body.left).unwrap_or(usize::MAX));
        *rest = &rest[skipped..];
        body.left -= skipped as u64;
        match body.left {
            0 => Ok(self.body.take().map(|body| body.request)),
            _ => Ok(None),
        }
    }

    fn keep(&mut self, rest: &[u8], ending: Option<Ending>) {
        // A client may send an empty line behind a request, and wait.
        let is_empty = rest.iter().all(|byte| b"\r\n".contains(byte));
        if is_empty || ending.is_some() {
            self.kept = Vec::new();
        } else {
            self.kept.clear();
            self.kept.extend_from_slice(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says it in pieces of this length, and returns all that is answered.
    fn say(text: &str, piece: usize) -> (Conversation, String, Heard) {
        let mut conversation = Conversation::default();
        let (mut answers, mut total) = (Vec::new(), Heard::default());
        for piece in text.as_bytes().chunks(piece) {
            let mut bytes = [0; 32 * 1024];
            let kept = conversation.put_kept(&mut bytes);
            bytes[kept..kept + piece.len()].copy_from_slice(piece);
            let heard = conversation.hear(
                &bytes[..kept + piece.len()],
                &mut answers,
                &|_| false,
                &mut |requests| format!("{{\"requests\":{requests}}}"),
                &mut Log::default(),
            );
            total.requests += heard.requests;
            total.ending = heard.ending;
            if total.ending.is_some() {
                break;
            }
        }
        let answers = without_dates(answers);
        (conversation, answers, total)
    }

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /";
    const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n\
                         Content-Length: 14\r\n\r\nHello, world!\n";

    /// Without their dates, of which each has one.
    fn without_dates(answers: Vec<u8>) -> String {
        let mut text = String::from_utf8(answers).expect("answers are text");
        let (answers, dates) = (text.matches("HTTP/1.1 "), text.matches("\r\nDate: "));
        assert_eq!(
            answers.count() - text.matches(" 100 Continue").count(),
            dates.count()
        );
        while let Some(date) = text.find("Date: ") {
            let end = text[date..].find("\r\n").expect("the line ends");
            text.replace_range(date..date + end + 2, "");
        }
        text
    }

    #[test]
    fn it_does_not_matter_how_requests_are_cut() {
        let text = format!("{GET}{POST}{GET}\r\n{POST}{GET}\r\n");
        let (_, expected, _) = say(&text, text.len());
        assert_eq!(expected.matches(HELLO).count(), 3);
        assert_eq!(
            expected.matches("HTTP/1.1 405 Method Not Allowed").count(),
            2
        );
        for piece in 1..text.len() {
            let (conversation, answers, heard) = say(&text, piece);
            assert_eq!(answers, expected, "{piece}");
            assert_eq!((heard.requests, heard.ending), (5, None));
            assert!(!conversation.is_within_request());
            assert_eq!(conversation.kept.capacity(), 0);
        }
    }

    #[test]
    fn answers_that_pile_up_stop_the_next_request() {
        let text = GET.repeat(1000);
        let (mut conversation, answers, heard) = say(&text, text.len());
        assert!(answers.len() < ANSWERS_LIMIT + 1000, "{}", answers.len());
        assert!(conversation.has_more_in_hand());
        let mut rest = vec![0; 32 * 1024];
        let length = conversation.put_kept(&mut rest);
        let then = conversation.hear(
            &rest[..length],
            &mut Vec::new(),
            &|_| false,
            &mut |_| String::new(),
            &mut Log::default(),
        );
        assert_eq!(heard.requests + then.requests, 1000);
        assert!(!conversation.has_more_in_hand());
    }

    #[test]
    fn nothing_is_heard_after_the_end() {
        let close = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let (conversation, answers, heard) = say(&format!("{close}{GET}"), 1000);
        assert_eq!((heard.requests, heard.ending), (1, Some(Ending::Wanted)));
        assert!(answers.contains("Connection: close\r\n"));
        assert!(!conversation.is_within_request());
        let (_, answers, heard) = say(&format!("{GET}nonsense\r\n\r\n{GET}"), 1000);
        let refused = Some(Ending::Refused(Some(Reason::Garbage)));
        assert_eq!((heard.requests, heard.ending), (1, refused));
        assert!(answers.starts_with(HELLO) && answers.contains("400 Bad Request"));
    }

    #[test]
    fn a_client_that_waits_for_it_is_asked_for_its_body() {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        let (conversation, answers, _) = say(head, head.len());
        assert_eq!(answers.as_bytes(), answer::CONTINUE);
        assert!(conversation.is_within_request());
        let whole = format!("{head}abc");
        let (_, answers, heard) = say(&whole, whole.len());
        assert!(answers.starts_with(HELLO), "{answers}");
        assert_eq!(heard.requests, 1);
    }

    #[test]
    fn nobody_is_asked_for_the_body_of_what_is_not_allowed() {
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        for text in [head, &format!("{head}abc{GET}")] {
            let (_, answers, heard) = say(text, text.len());
            assert!(answers.starts_with("HTTP/1.1 405"), "{answers}");
            assert!(answers.contains("Connection: close\r\n"), "{answers}");
            assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{answers}");
            // Whether its body comes nobody knows, and so not where the next request begins.
            assert_eq!(
                (heard.requests, heard.ending),
                (1, Some(Ending::Refused(None)))
            );
        }
    }

    #[test]
    fn figures_tell_of_the_request_that_asks_for_them() {
        let stats = format!("{GET}GET /stats?x HTTP/1.1\r\nHost: a\r\n\r\n");
        let (_, answers, _) = say(&stats, stats.len());
        assert!(answers.ends_with("{\"requests\":2}"), "{answers}");
    }
}
