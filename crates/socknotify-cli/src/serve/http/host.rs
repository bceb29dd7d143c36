//! The `Host` header.

/// Whether this names a host, and perhaps a port: RFC 9110, section 7.2. It may be empty.
pub(super) fn is_host(value: &[u8]) -> bool {
    let (host, port) = match value.iter().rposition(|&byte| byte == b':' || byte == b']') {
        Some(colon) if value[colon] == b':' => (&value[..colon], &value[colon + 1..]),
        _ => (value, &b""[..]),
    };
    let is_literal = host.starts_with(b"[") && host.ends_with(b"]") && host.len() > 2;
    let is_name = match is_literal {
        true => host[1..host.len() - 1]
            .iter()
            .all(|&byte| byte == b':' || is_in_name(byte)),
        false => host.iter().all(|&byte| is_in_name(byte)),
    };
    is_name && port.iter().all(u8::is_ascii_digit)
}

/// What a registered name is made of. What follows a `%` is not looked at.
fn is_in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_and_perhaps_a_port() {
        for host in [
            "",
            "a",
            "a.b-c:80",
            "127.0.0.1:7007",
            "[::1]",
            "[::1]:80",
            "a:",
            "%C3%A4",
        ] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "a b/", "a/", "a b", "a:b", "::1", "[::1", "[]", "a@b", "a:1:2", "ä", "a?", "[a]b",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
