//! Tables of a report, for terminals and for Markdown.

use std::fmt::Write as _;

/// A table: what is left-aligned, then numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    /// Characters of it at least.
    width: usize,
    is_number: bool,
}

impl Table {
    /// A further column, of text.
    pub(super) fn text(mut self, name: &str, width: usize) -> Self {
        self.columns.push(Column { name: name.to_owned(), width, is_number: false });
        self
    }

    /// A further column, of numbers.
    pub(super) fn number(mut self, name: &str, width: usize) -> Self {
        self.columns.push(Column { name: name.to_owned(), width, is_number: true });
        self
    }

    /// A further row, of as many cells as there are columns.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// True if there is no row.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Lines whose columns stand below each other.
    pub(super) fn plain(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|c| c.name.clone()).collect();
        let lines = || std::iter::once(&names).chain(&self.rows);
        let width_of = |(i, column): (usize, &Column)| {
            let widths = lines().filter_map(|line| line.get(i)).map(|cell| cell.chars().count());
            widths.max().unwrap_or(0).max(column.width)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(width_of).collect();
        let mut text = String::new();
        for row in lines() {
            let mut line = String::new();
            for (i, (cell, (column, width))) in row.iter().zip(self.columns.iter().zip(&widths)).enumerate() {
                let gap = if i == 0 { "" } else { "  " };
                // Writing to a String cannot fail.
                let _ = match column.is_number {
                    true => write!(line, "{gap}{cell:>width$}"),
                    false => write!(line, "{gap}{cell:<width$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The table in Markdown, as GitHub reads it.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
        let mut text = line(&mut self.columns.iter().map(|c| escaped(&c.name)));
        text += &line(&mut self.columns.iter().map(|c| if c.is_number { "---:" } else { "---" }.to_owned()));
        for row in &self.rows {
            text += &line(&mut row.iter().map(|cell| escaped(cell)));
        }
        text
    }
}

/// Text that Markdown shows as it is, in one line: drivers call themselves anything.
pub(super) fn escaped(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '[' | '<' | '&' => shown.extend(['\\', c]),
            c if c.is_control() => shown.push(' '),
            c => shown.push(c),
        }
    }
    shown
}

/// Text of several lines that Markdown shows as it is.
pub(super) fn fenced(text: &str) -> String {
    // Longer than any fence within.
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}text\n{}\n{fence}\n", text.trim_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let mut table = Table::default().text("device", 0).text("op", 4).number("pass", 5);
        table.row(["a|b".to_owned(), "sort".to_owned(), "7".to_owned()]);
        table.row(["gpu-long".to_owned(), "q".to_owned(), "1234567".to_owned()]);
        assert_eq!(table.plain(), "device    op       pass\na|b       sort        7\ngpu-long  q     1234567\n");
        let markdown =
            "| device | op | pass |\n| --- | --- | ---: |\n| a\\|b | sort | 7 |\n| gpu-long | q | 1234567 |\n";
        assert_eq!(table.markdown(), markdown);
    }

    #[test]
    fn nothing_in_a_fence_ends_it() {
        assert_eq!(fenced("a\n"), "```text\na\n```\n");
        assert_eq!(fenced("\n```\nb"), "````text\n```\nb\n````\n");
    }
}
