//! `${NAME:default}` in a value, read as TBMQ reads it: the name ends at the first colon, what
//! follows may hold colons, balanced braces and further placeholders; a variable's own value may
//! hold placeholders, too. `$${` is a `${` that stays.

/// How the environment is asked; tests answer from a map.
pub type Env<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Placeholders inside values inside placeholders; more is a circle.
const DEPTH: usize = 16;

/// What a text became.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) text: String,
    /// The variables that were set and gave part of it.
    pub(super) variables: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlaceholderError {
    #[error("`${{` without its `}}`")]
    Unclosed,
    #[error("{0} is not set and the file gives no value for that case")]
    Unset(String),
    #[error("placeholders that never end")]
    Circle,
}

pub(super) fn resolve(raw: &str, env: &Env<'_>) -> Result<Resolved, PlaceholderError> {
    let mut resolved = Resolved::default();
    resolve_into(raw, env, DEPTH, &mut resolved)?;
    Ok(resolved)
}

fn resolve_into(
    raw: &str,
    env: &Env<'_>,
    depth: usize,
    out: &mut Resolved,
) -> Result<(), PlaceholderError> {
    let depth = depth.checked_sub(1).ok_or(PlaceholderError::Circle)?;
    let mut rest = raw;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            out.text.push_str(before);
            out.text.push_str("${");
            rest = after;
            continue;
        }
        out.text.push_str(before);
        let end = closing_brace(after).ok_or(PlaceholderError::Unclosed)?;
        let (inside, behind) = (&after[..end], &after[end + 1..]);
        let (name, default) = match inside.split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let name = name.trim();
        match (env(name), default) {
            (Some(value), _) => {
                out.variables.push(name.to_owned());
                resolve_into(&value, env, depth, out)?;
            }
            (None, Some(default)) => resolve_into(default, env, depth, out)?,
            (None, None) => return Err(PlaceholderError::Unset(name.to_owned())),
        }
        rest = behind;
    }
    out.text.push_str(rest);
    Ok(())
}

/// The name of the first variable that a raw value asks for.
pub(super) fn variable(raw: &str) -> Option<&str> {
    let (_, after) = raw.split_once("${")?;
    let end = after.find([':', '}'])?;
    Some(after[..end].trim())
}

/// Where the brace is that closes what was opened just before `text`.
fn closing_brace(text: &str) -> Option<usize> {
    let mut open = 1;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(raw: &str, env: &[(&str, &str)]) -> Result<String, PlaceholderError> {
        let lookup = |name: &str| {
            env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        resolve(raw, &lookup).map(|resolved| resolved.text)
    }

    #[test]
    fn the_variable_goes_before_the_default() {
        assert_eq!(text("${A:5}", &[]).unwrap(), "5");
        assert_eq!(text("${A:5}", &[("A", "7")]).unwrap(), "7");
        assert_eq!(text("${A:}", &[]).unwrap(), "");
        assert_eq!(text("${A:5}", &[("A", "")]).unwrap(), "", "set but empty is set");
        assert_eq!(text("plain", &[]).unwrap(), "plain");
        assert_eq!(text("${A:}", &[("A", "a$${b}${B:c}")]).unwrap(), "a${b}c", "one that stays");
        assert_eq!(text("${A:x$${b}y}", &[]).unwrap(), "x${b}y");
    }

    #[test]
    fn a_default_may_hold_colons_and_braces() {
        assert_eq!(text("${A:10:1,300:60}", &[]).unwrap(), "10:1,300:60");
        assert_eq!(text("${A:jdbc:x://h:5432/d}", &[]).unwrap(), "jdbc:x://h:5432/d");
        assert_eq!(text("${A:{\"a\":{}}}", &[]).unwrap(), "{\"a\":{}}");
        assert_eq!(text("${A:${B:c}}!", &[]).unwrap(), "c!");
        assert_eq!(text("${A:${B:c}}", &[("B", "d")]).unwrap(), "d");
    }

    #[test]
    fn several_stand_in_one_value_and_values_hold_more() {
        assert_eq!(text("${A:1}-${B:2}", &[("B", "3")]).unwrap(), "1-3");
        assert_eq!(text("${A:1}", &[("A", "${B:9}")]).unwrap(), "9");
    }

    #[test]
    fn what_cannot_be_resolved_is_named() {
        assert_eq!(text("${A}", &[]), Err(PlaceholderError::Unset("A".into())));
        assert_eq!(text("${A:1", &[]), Err(PlaceholderError::Unclosed));
        assert_eq!(text("${A:1}", &[("A", "${A}")]), Err(PlaceholderError::Circle));
    }

    #[test]
    fn the_variables_that_gave_the_value_are_told() {
        let resolved = resolve("${A:${B:1}}", &|name| (name == "B").then(|| "2".into())).unwrap();
        assert_eq!(resolved.variables, ["B"]);
        assert_eq!(variable("${A:${B:1}}"), Some("A"));
        assert_eq!(variable("none"), None);
    }
}
