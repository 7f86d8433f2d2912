//! Prints the JSON Schema of the request, as it is committed in `statemachine/request.schema.json`.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let text = serde_json::to_string_pretty(&step::request::json_schema())?;
    writeln!(std::io::stdout(), "{text}")
}
