//! A run in Markdown, for a page about it or the summary of a CI job.

use super::read::Head;
use super::summary::Summary;
use super::table::{Table, escaped, fenced};

/// A run's head, the failures that are described in full, and its summary.
pub fn markdown(head: &Head, failures: &str, summary: &Summary) -> String {
    let Head { profile, seed, conform, devices, .. } = head;
    let mut text = format!("# conform: {}\n\n", summary.ending(None));
    text += &format!("Profile {}, seed {seed}, by conform {}.\n\n", escaped(profile), escaped(conform));
    let mut table = Table::default().text("device", 0).text("name", 0).text("driver", 0);
    devices.iter().for_each(|d| table.row([d.key.clone(), d.name.clone(), d.driver.clone()]));
    for table in [table, summary.results_table(), summary.models_table()].iter().filter(|t| !t.is_empty()) {
        text += &table.markdown();
        text.push('\n');
    }
    if !failures.is_empty() {
        text += &format!("## Failures\n\n{}\n", fenced(failures));
    }
    let remarks = summary.remarks();
    if !remarks.trim().is_empty() {
        text += &format!("## Remarks\n\n{}", fenced(&remarks));
    }
    text
}
