//! Which Fargate profiles run Flux's pods.
//!
//! <https://docs.aws.amazon.com/eks/latest/userguide/fargate-profile.html>

use aws_sdk_eks::types::{FargateProfile, FargateProfileSelector, FargateProfileStatus};

/// The profiles that run all of Flux's controllers, or why none does.
pub(crate) fn select<'a>(
    profiles: &'a [FargateProfile],
    namespace: &str,
    controllers: &[&str],
) -> Result<Vec<&'a FargateProfile>, String> {
    let selects = |profile: &FargateProfile, controller: &str| {
        profile.selectors().iter().any(|selector| runs(selector, namespace, controller))
    };
    let active = |profile: &&FargateProfile| profile.status() == Some(&FargateProfileStatus::Active);
    let uncovered: Vec<&str> = controllers
        .iter()
        .filter(|controller| !profiles.iter().filter(active).any(|profile| selects(profile, controller)))
        .copied()
        .collect();
    if uncovered.is_empty() {
        return Ok(profiles
            .iter()
            .filter(active)
            .filter(|profile| controllers.iter().any(|controller| selects(profile, controller)))
            .collect());
    }
    let mut reasons: Vec<String> = Vec::new();
    for profile in profiles {
        let name = profile.fargate_profile_name().unwrap_or("(unnamed)");
        let of_namespace: Vec<&FargateProfileSelector> =
            profile.selectors().iter().filter(|selector| is_of(selector, namespace)).collect();
        if of_namespace.is_empty() {
            continue;
        }
        let status = profile.status().map_or("in no known state", FargateProfileStatus::as_str);
        if !active(&profile) {
            reasons.push(format!("the profile {name} selects it and is {status}{}", health(profile)));
        } else {
            // A selector without labels would have covered every controller.
            let labels: Vec<String> =
                of_namespace.iter().map(|selector| format!("{{{}}}", shown_labels(selector))).collect();
            reasons.push(format!(
                "the profile {name} selects it only for pods with the labels {}, which {} {} not carry",
                labels.join(" or "),
                uncovered.join(", "),
                if uncovered.len() == 1 { "does" } else { "do" }
            ));
        }
    }
    if reasons.is_empty() {
        reasons.push(if profiles.is_empty() {
            "the cluster has no Fargate profile".to_owned()
        } else {
            let names: Vec<&str> = profiles.iter().filter_map(|p| p.fargate_profile_name()).collect();
            format!("none of {} selects it", names.join(", "))
        });
    }
    Err(reasons.join("; "))
}

fn is_of(selector: &FargateProfileSelector, namespace: &str) -> bool {
    selector.namespace().is_some_and(|pattern| wildcard(pattern, namespace))
}

/// Whether a selector runs the pods of a controller. Of the pods' labels only those count that
/// Flux's own manifests set in every controller's pod template; for any other, nobody can tell before the pods
/// are there.
fn runs(selector: &FargateProfileSelector, namespace: &str, controller: &str) -> bool {
    let known = [
        ("app", controller),
        ("app.kubernetes.io/component", controller),
        ("app.kubernetes.io/part-of", "flux"),
    ];
    is_of(selector, namespace)
        && selector.labels().is_none_or(|labels| {
            labels
                .iter()
                .all(|(key, pattern)| known.iter().any(|(k, value)| k == key && wildcard(pattern, value)))
        })
}

fn shown_labels(selector: &FargateProfileSelector) -> String {
    let mut labels: Vec<String> = selector
        .labels()
        .map(|labels| labels.iter().map(|(key, value)| format!("{key}={value}")).collect())
        .unwrap_or_default();
    labels.sort();
    labels.join(", ")
}

fn health(profile: &FargateProfile) -> String {
    let issues: Vec<String> = profile
        .health()
        .map(|health| health.issues())
        .unwrap_or_default()
        .iter()
        .map(|issue| {
            let code = issue.code().map(|code| code.as_str()).unwrap_or("issue");
            format!("{code}: {}", issue.message().unwrap_or("no message"))
        })
        .collect();
    if issues.is_empty() { String::new() } else { format!(" ({})", issues.join("; ")) }
}

/// EKS's wildcards: `*` for any number of characters, `?` for one.
fn wildcard(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where the last `*` stood, and how much of the text it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    t = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLLERS: [&str; 2] = ["source-controller", "kustomize-controller"];

    #[test]
    fn wildcards_are_those_of_eks() {
        for (pattern, text, expected) in [
            ("fluxcd", "fluxcd", true),
            ("fluxcd", "fluxcd2", false),
            ("*", "fluxcd", true),
            ("*", "", true),
            ("flux*", "fluxcd", true),
            ("*cd", "fluxcd", true),
            ("f*x*d", "fluxcd", true),
            ("f*x*d", "fluxce", false),
            ("flux??", "fluxcd", true),
            ("flux?", "fluxcd", false),
            ("fluxcd?", "fluxcd", false),
            ("fluxcd*", "fluxcd", true),
            ("", "fluxcd", false),
            ("*a*ab", "aaab", true),
        ] {
            assert_eq!(wildcard(pattern, text), expected, "{pattern} {text}");
        }
    }

    fn profile(
        name: &str,
        status: FargateProfileStatus,
        namespace: &str,
        labels: &[(&str, &str)],
    ) -> FargateProfile {
        let mut selector = FargateProfileSelector::builder().namespace(namespace);
        for (key, value) in labels {
            selector = selector.labels(*key, *value);
        }
        FargateProfile::builder()
            .fargate_profile_name(name)
            .status(status)
            .selectors(selector.build())
            .build()
    }

    #[test]
    fn a_profile_must_be_active_and_run_every_controller() {
        use FargateProfileStatus::{Active, Creating};
        let source = profile("fp-s", Active, "fluxcd", &[("app", "source-*")]);
        let kustomize =
            profile("fp-k", Active, "flux*", &[("app.kubernetes.io/component", "kustomize-?ontroller")]);
        for (profiles, expected) in [
            (vec![profile("fp", Active, "fluxcd", &[])], Ok(vec!["fp"])),
            (vec![profile("fp", Active, "fl?x*", &[])], Ok(vec!["fp"])),
            (vec![profile("fp", Active, "fluxcd", &[("app", "*")])], Ok(vec!["fp"])),
            (vec![source.clone(), kustomize], Ok(vec!["fp-s", "fp-k"])),
            (vec![], Err("the cluster has no Fargate profile")),
            (
                vec![profile("a", Active, "default", &[]), profile("b", Active, "kube-system", &[])],
                Err("none of a, b selects it"),
            ),
            (vec![profile("fp", Creating, "fluxcd", &[])], Err("the profile fp selects it and is CREATING")),
            (
                vec![source],
                Err(
                    "the profile fp-s selects it only for pods with the labels {app=source-*}, which kustomize-controller does not carry",
                ),
            ),
            (
                vec![profile("fp", Active, "*", &[("team", "x")])],
                Err(
                    "the profile fp selects it only for pods with the labels {team=x}, which source-controller, kustomize-controller do not carry",
                ),
            ),
        ] {
            let found = select(&profiles, "fluxcd", &CONTROLLERS)
                .map(|found| found.iter().filter_map(|p| p.fargate_profile_name()).collect::<Vec<_>>());
            assert_eq!(found, expected.map_err(str::to_owned));
        }
    }
}
