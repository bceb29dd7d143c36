//! An attribute of socknotify's tests, so that each is named once.

use proc_macro::{TokenStream, TokenTree};

/// Makes of a function, which is given a `Backend`, or a `CompletionPort` over one, and returns an `io::Result<()>`, a test for
/// each backend: in a module with the function's name, a test with the backend's.
///
/// With `(with_permits)`, only for backends whose permits are the library's, and not the kernel's. With `(timed)`, ignored
/// unless asked for, and named `timed_` and the backend: it limits how long something takes.
///
/// Which backends there are says `tests_on_backends`, a macro of the tests' `support`.
#[proc_macro_attribute]
pub fn for_every_backend(which: TokenStream, function: TokenStream) -> TokenStream {
    let is_fn = |token: &TokenTree| matches!(token, TokenTree::Ident(it) if it.to_string() == "fn");
    let mut tokens = function.clone().into_iter().skip_while(|it| !is_fn(it));
    let Some(TokenTree::Ident(name)) = tokens.nth(1) else {
        let error = "compile_error!(\"for_every_backend is for functions\");";
        return error.parse().expect("it is an item");
    };
    let tests = format!("mod {name} {{ tests_on_backends! {{ {name} {which} }} }}");
    let tests: TokenStream = tests.parse().expect("it is a module");
    function.into_iter().chain(tests).collect()
}
