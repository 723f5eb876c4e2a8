//! A bad result in words: what, which element, how far off, and how to see it again.

use std::fmt::Write as _;

use conform_cases::judge::Status;

use crate::result::CaseResult;

/// Lines of a dead worker's log that are shown.
const LOG_LINES: usize = 8;

/// The text of one bad result, several lines.
pub fn describe(r: &CaseResult) -> String {
    let mut text = String::new();
    let report_only = if r.gating { "" } else { "  (reported only: the contract does not bind this device)" };
    line(&mut text, &format!("{} on {}{report_only}", r.verdict.word().to_uppercase(), r.device));
    line(&mut text, &format!("  case      {}", r.case));
    if r.decoded_by_build {
        line(
            &mut text,
            "  weights   decoded-by-build: their values are what this build's own decoder makes of the bytes",
        );
    }
    if let Some(why) = &r.why {
        line(&mut text, &format!("  why       {why}"));
    }
    if let Some(why) = &r.unexpected {
        line(&mut text, &format!("  note      {why}"));
    }
    for check in &r.checks {
        let Status::Failed(f) = &check.status else { continue };
        line(&mut text, &format!("  {:<9} {}", check.name, f.what));
        if let Some(worst) = &f.worst {
            line(&mut text, &format!("            {worst}"));
        }
        if let Some(pattern) = &f.pattern {
            line(&mut text, &format!("            pattern: {pattern}"));
        }
    }
    if let Some(m) = &r.metrics {
        let sizes = format!(
            "ratio {:.3e}, NMSE {:.3e}, max abs {:.3e}, max rel {:.3e}, max ULP {:.3e}",
            m.ratio, m.nmse, m.max_abs, m.max_rel, m.max_ulp
        );
        line(&mut text, &format!("  errors    {sizes}"));
        let worth = format!("{:.0} % power, {} of {} elements exact", 100.0 * m.power, m.exact, m.elements);
        line(&mut text, &format!("  model     {}: {worth}", m.model));
    }
    if let Some(log) = &r.log {
        let lines: Vec<&str> = log.lines().filter(|l| !l.trim().is_empty()).collect();
        for (i, l) in lines[lines.len().saturating_sub(LOG_LINES)..].iter().enumerate() {
            line(&mut text, &format!("  {:<9} {l}", if i == 0 { "log" } else { "" }));
        }
    }
    line(&mut text, &format!("  replay    {}", CaseResult::replay(&r.case, &r.device, r.told.as_deref())));
    text
}

fn line(text: &mut String, l: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", l.trim_end());
}
