//! What is served over HTTP: files, or one small answer and statistics.

use std::sync::{Arc, PoisonError, RwLock};

use socknotify_http::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use socknotify_http::http::{HeaderName, HeaderValue, Method, StatusCode};
use socknotify_http::{Handle, Request, Response, ResponseBody};

use super::Figures;
use super::root::Root;
use crate::output;

pub(crate) struct Site {
    server: Handle,
    root: Option<RwLock<Arc<Root>>>,
}

impl Site {
    pub(crate) fn new(server: Handle, root: Option<Root>) -> Self {
        let root = root.map(|root| RwLock::new(Arc::new(root)));
        Site { server, root }
    }

    pub(crate) fn answer(&self, request: &Request<'_>) -> Response {
        match *request.method() {
            Method::GET | Method::HEAD => {}
            Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::OPTIONS
            | Method::PATCH
            | Method::TRACE => {
                let response = status(StatusCode::METHOD_NOT_ALLOWED);
                return with(response, ALLOW, "GET, HEAD");
            }
            _ => return status(StatusCode::NOT_IMPLEMENTED),
        }
        if let Some(root) = &self.root {
            let root = Arc::clone(&root.read().unwrap_or_else(PoisonError::into_inner));
            return root.answer(request);
        }
        if request.uri().path() != "/stats" {
            return Response::new("Hello, world!\n".into());
        }
        let figures = Figures::of(&self.server);
        let body = serde_json::to_vec(&figures).unwrap_or_default();
        let response = with(Response::new(body.into()), CONTENT_TYPE, "application/json");
        with(response, CACHE_CONTROL, "no-store")
    }

    /// Has what follows find what has the path of the root by now. That may block.
    pub(crate) fn reopen(&self) {
        let Some(place) = &self.root else { return };
        let root = Arc::clone(&place.read().unwrap_or_else(PoisonError::into_inner));
        match root.open_again() {
            Ok(root) => *place.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(root),
            Err(error) => output::problem(format_args!("open the root again: {error}")),
        }
    }
}

/// An answer that says in its body what it says in its status.
pub(crate) fn status(status: StatusCode) -> Response {
    let mut response = Response::new(ResponseBody::from(format!("{status}\n")));
    *response.status_mut() = status;
    response
}

/// The same with a header. What no header may have is left out.
pub(crate) fn with(mut response: Response, name: HeaderName, value: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}
