use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use super::command::{inspect, make};
use super::*;

const NOW_S: u64 = 1_800_000_000;

fn key(seed: u8) -> PrivateKey {
    PrivateKey::parse(&STANDARD.encode([seed; 32])).expect("32 bytes")
}

fn plan() -> Plan {
    Plan {
        name: "a customer".into(),
        throughput: 500,
        sessions: Some(1000),
        expires_at_s: NOW_S + 86_400 * 30,
    }
}

#[test]
fn a_signed_plan_says_what_was_signed() {
    let token = sign(&plan(), &key(1)).expect("signs");
    assert_eq!(token::verify(&token, &key(1).public()), Ok(plan()));
    let free = Plan { sessions: None, ..plan() };
    let token = sign(&free, &key(1)).expect("signs");
    assert_eq!(token::verify(&token, &key(1).public()), Ok(free));
}

/// No byte of it can be changed, nothing appended or cut, and no other key's word is taken.
#[test]
fn a_forged_plan_is_refused() {
    let (token, public) = (sign(&plan(), &key(1)).expect("signs"), key(1).public());
    assert_eq!(token::verify(&token, &key(2).public()), Err(PlanError::Forged));
    for at in 0..token.len() {
        for other in ['A', 'b', '.', '-'] {
            let mut bytes = token.clone().into_bytes();
            if bytes[at] == other as u8 {
                continue;
            }
            bytes[at] = other as u8;
            let changed = String::from_utf8(bytes).expect("ASCII");
            assert!(token::verify(&changed, &public).is_err(), "{other} at {at}");
        }
        assert!(token::verify(&token[..at], &public).is_err(), "cut at {at}");
    }
    assert!(token::verify(&format!("{token}A"), &public).is_err());
}

/// A token can't choose how it is judged.
#[test]
fn only_eddsa_is_taken() {
    let claims = br#"{"name":"x","throughput":9,"sessions":0,"exp":99999999999}"#;
    let claims = URL_SAFE_NO_PAD.encode(claims);
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"HS256","typ":"JWT"}"#,
        r#"{"alg":"EdDSA","crit":["b64"]}"#,
        r#"{"typ":"JWT"}"#,
    ] {
        let signed = format!("{}.{claims}", URL_SAFE_NO_PAD.encode(header));
        for signature in [String::new(), URL_SAFE_NO_PAD.encode([0; 64])] {
            let token = format!("{signed}.{signature}");
            let fault = token::verify(&token, &key(1).public()).expect_err("no EdDSA");
            assert!(matches!(fault, PlanError::Malformed(_)), "{header}: {fault}");
        }
    }
}

#[test]
fn an_expired_plan_says_since_when() {
    let plan = plan();
    assert_eq!(plan.check(plan.expires_at_s - 1), Ok(()));
    let fault = plan.check(plan.expires_at_s + 5).expect_err("expired");
    assert_eq!(fault.to_string(), "the plan \"a customer\" expired 5 s ago");
}

/// The commands: what one signs, the other reads; keys are in the form that openssl writes.
#[test]
fn the_commands_sign_and_inspect() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writes");
        path
    };
    // RFC 8410 section 10.3, as openssl would write it.
    let private = write(
        "key.pem",
        "-----BEGIN PRIVATE KEY-----\n\
         MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
         -----END PRIVATE KEY-----\n",
    );
    // RFC 8410 section 10.1: the other half.
    let public = write(
        "key.pub",
        "-----BEGIN PUBLIC KEY-----\n\
         MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
         -----END PUBLIC KEY-----\n",
    );
    let (token, said) = make(&private, &plan()).expect("signs");
    assert!(said.contains("SLUICE_PLAN_PUBLIC_KEY=Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="));
    let token = write("plan.jwt", &format!("{token}\n"));
    let (out, _) = inspect(&token, Some(&public), NOW_S).expect("reads");
    for part in ["a customer", "500 messages a second", "sessions: 1000", "in 30 days"] {
        assert!(out.contains(part), "{part} is not in {out}");
    }
    assert!(matches!(
        inspect(&token, Some(&public), NOW_S + 86_400 * 31),
        Err(PlanError::Expired { .. })
    ));
    let wrong = write("other.pub", &key(3).public().text());
    assert_eq!(inspect(&token, Some(&wrong), NOW_S), Err(PlanError::Forged));
}

/// A build without a key takes no plan, and says so.
#[test]
fn without_a_built_in_key_no_plan_is_taken() {
    if BUILT_IN_KEY.is_none() {
        let fault = Plan::load(Path::new("/nowhere"), NOW_S).expect_err("no key");
        assert_eq!(fault, PlanError::NoKey);
    }
}
