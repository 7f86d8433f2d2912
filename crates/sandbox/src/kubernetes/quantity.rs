//! Quantities in Kubernetes' canonical form: `1000m` is kept as `1`, `1024Mi` as `1Gi`.

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// A quantity in nano-units and whether it was written in powers of two; nothing when it isn't one.
pub fn parse(text: &str) -> Option<(i128, bool)> {
    let split =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.trim_start_matches(['+', '-']).is_empty() && fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let nano = digits.checked_mul(10i128.checked_pow(9 - fraction.len() as u32)?)?;
    if let Some(power) = BINARY.iter().skip(1).position(|other| *other == unit) {
        return Some((nano.checked_mul(1024i128.checked_pow(power as u32 + 1)?)?, true));
    }
    let power = match DECIMAL.iter().find(|(other, _)| *other == unit) {
        Some((_, power)) => *power,
        None => unit.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    let value = match power {
        0.. => nano.checked_mul(10i128.checked_pow(power as u32)?)?,
        _ => nano / 10i128.checked_pow(power.unsigned_abs())?,
    };
    Some((value, false))
}

/// The canonical form; what isn't a quantity stays as it is.
pub fn canonical(text: &str) -> String {
    let Some((nano, binary)) = parse(text) else { return text.to_owned() };
    let unit = 1_000_000_000;
    if nano == 0 {
        return "0".to_owned();
    }
    if binary && nano % unit == 0 && (nano / unit).abs() >= 1024 {
        let (mut value, mut power) = (nano / unit, 0);
        while value % 1024 == 0 && power < 6 {
            value /= 1024;
            power += 1;
        }
        return format!("{value}{}", BINARY[power]);
    }
    for (name, power) in DECIMAL.iter().rev() {
        let size = 10i128.pow((power + 9) as u32);
        if nano % size == 0 {
            return format!("{}{name}", nano / size);
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        for (text, expected) in [
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("50m", "50m"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("64Mi", "64Mi"),
            ("1Gi", "1Gi"),
            ("1000", "1k"),
            ("512Ki", "512Ki"),
            ("1e3", "1k"),
            ("0", "0"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }
}
