//! Writes the XML of EC2's query protocol: elements and lists of `item`, no attributes.

use std::fmt::Display;

/// The inside of a reply.
#[derive(Debug, Default)]
pub(super) struct Xml {
    out: String,
}

impl Xml {
    /// `<name>value</name>`
    pub(super) fn text(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.open(name);
        escape(&mut self.out, &value.to_string());
        self.close(name)
    }

    /// The same, or nothing.
    pub(super) fn optional(&mut self, name: &str, value: Option<impl Display>) -> &mut Self {
        if let Some(value) = value {
            self.text(name, value);
        }
        self
    }

    /// `<name>…</name>`
    pub(super) fn node(&mut self, name: &str, fill: impl FnOnce(&mut Xml)) -> &mut Self {
        self.open(name);
        fill(self);
        self.close(name)
    }

    /// `<name><item>…</item>…</name>`
    pub(super) fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        each: impl Fn(&mut Xml, T),
    ) -> &mut Self {
        self.open(name);
        for item in items {
            self.open("item");
            each(self, item);
            self.close("item");
        }
        self.close(name)
    }

    /// `<name><item>text</item>…</name>`
    pub(super) fn texts<T: Display>(&mut self, name: &str, items: impl IntoIterator<Item = T>) -> &mut Self {
        self.list(name, items, |xml, item| escape(&mut xml.out, &item.to_string()))
    }

    /// The whole reply of an action.
    pub(super) fn reply(&self, action: &str, request_id: &str) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>{request_id}</requestId>{}</{action}Response>",
            self.out
        )
    }

    fn open(&mut self, name: &str) {
        self.out.push('<');
        self.out.push_str(name);
        self.out.push('>');
    }

    fn close(&mut self, name: &str) -> &mut Self {
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
        self
    }
}

/// The whole reply of a call that failed.
pub(super) fn error(code: &str, message: &str, request_id: &str) -> String {
    let mut text = String::new();
    escape(&mut text, message);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code><Message>{text}</Message></Error></Errors><RequestID>{request_id}</RequestID></Response>"
    )
}

fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && !"\t\n\r".contains(c) => {}
            c => out.push(c),
        }
    }
}
