//! Zip archives of functions, made quickly and kept.
//!
//! `sam deploy` would pack each folder anew, at the highest compression. What is deployed here goes no
//! further than this machine, and mostly has not changed since the last time.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use flate2::{Compression, Crc, write::DeflateEncoder};

use crate::clock;
use crate::sigv4::sha256_hex;

/// Archives that nobody asked for in this time are removed.
const KEPT: Duration = Duration::from_secs(3600);

/// A file to pack.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its name in the archive.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Whether it is a program. Programs are packed without their symbols.
    pub program: bool,
}

/// The archive of these files: that in `folder` where they have not changed since, or a new one.
///
/// # Errors
/// Where a file is missing or the archive cannot be written.
pub fn of(folder: &Path, name: &str, sources: &[Source]) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let archive = folder.join(format!("{name}-{}.zip", &key(sources)?[..16]));
    if !archive.exists() {
        // Several worlds may start at once; each writes its own file, and the last to finish stays.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&pack(folder, sources)?)?;
        file.persist(&archive)?;
    }
    tidy(folder, name, &archive);
    Ok(archive)
}

/// A text that changes when any of the files does.
fn key(sources: &[Source]) -> anyhow::Result<String> {
    let mut text = String::new();
    for source in sources {
        let metadata =
            fs::metadata(&source.path).with_context(|| format!("reading {}", source.path.display()))?;
        text.push_str(&format!(
            "{} {} {} {} {}\n",
            source.name,
            source.path.display(),
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec()
        ));
    }
    Ok(sha256_hex(text.as_bytes()))
}

fn tidy(folder: &Path, name: &str, archive: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let other = path.file_name().and_then(|file| file.to_str()).is_some_and(|file| {
            file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-') && rest.ends_with(".zip"))
        });
        let old = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|modified| clock::now() - time::OffsetDateTime::from(modified) > KEPT);
        if other && old && path != archive {
            // Another world may have removed it in the meantime.
            let _ = fs::remove_file(path);
        }
    }
}

/// The bytes of a program without symbols, which make up most of an unoptimised one.
fn stripped(folder: &Path, path: &Path) -> anyhow::Result<Vec<u8>> {
    let copy = tempfile::NamedTempFile::new_in(folder)?.into_temp_path();
    let done = std::process::Command::new("strip").arg("-o").arg(&copy).arg(path).output();
    match done {
        Ok(output) if output.status.success() => Ok(fs::read(&copy)?),
        _ => fs::read(path).with_context(|| format!("reading {}", path.display())),
    }
}

/// A file's place in the archive.
struct Entry {
    name: String,
    mode: u32,
    crc: u32,
    packed: u32,
    size: u32,
    offset: u32,
}

/// The zip format's fields, as far as deflated files below 4 GB need them (PKWARE, APPNOTE.TXT).
fn pack(folder: &Path, sources: &[Source]) -> anyhow::Result<Vec<u8>> {
    let mut out: Vec<u8> = Vec::new();
    let mut entries = Vec::new();
    for source in sources {
        let bytes = if source.program {
            stripped(folder, &source.path)?
        } else {
            fs::read(&source.path).with_context(|| format!("reading {}", source.path.display()))?
        };
        let mut crc = Crc::new();
        crc.update(&bytes);
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&bytes)?;
        let packed = encoder.finish()?;
        let entry = Entry {
            name: source.name.clone(),
            mode: if source.program { 0o100_755 } else { 0o100_644 },
            crc: crc.sum(),
            packed: u32::try_from(packed.len())?,
            size: u32::try_from(bytes.len())?,
            offset: u32::try_from(out.len())?,
        };
        out.extend(0x0403_4b50_u32.to_le_bytes());
        entry.describe(&mut out)?;
        out.extend(entry.name.as_bytes());
        out.extend(packed);
        entries.push(entry);
    }
    let directory = u32::try_from(out.len())?;
    for entry in &entries {
        out.extend(0x0201_4b50_u32.to_le_bytes());
        // Made by version 2.0 on Unix, whose modes the external attributes hold.
        out.extend(0x0314_u16.to_le_bytes());
        entry.describe(&mut out)?;
        // No comment, first disk, no internal attributes.
        out.extend([0; 6]);
        out.extend((entry.mode << 16).to_le_bytes());
        out.extend(entry.offset.to_le_bytes());
        out.extend(entry.name.as_bytes());
    }
    let size = u32::try_from(out.len())? - directory;
    let count = u16::try_from(entries.len())?;
    out.extend(0x0605_4b50_u32.to_le_bytes());
    out.extend([0; 4]);
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(size.to_le_bytes());
    out.extend(directory.to_le_bytes());
    out.extend([0; 2]);
    Ok(out)
}

impl Entry {
    /// The fields that the local header and the directory have in common.
    fn describe(&self, out: &mut Vec<u8>) -> anyhow::Result<()> {
        // Version 2.0, no flags, deflated; a fixed date (1 January 1980) keeps equal files equal.
        for field in [20_u16, 0, 8, 0, 0x21] {
            out.extend(field.to_le_bytes());
        }
        for field in [self.crc, self.packed, self.size] {
            out.extend(field.to_le_bytes());
        }
        out.extend(u16::try_from(self.name.len())?.to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_read_by_others_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "#!/bin/sh\necho packed\n").unwrap();
        let text = folder.path().join("text");
        fs::write(&text, "text ".repeat(1000)).unwrap();
        let sources = [
            Source { name: "bootstrap".to_owned(), path: program, program: true },
            Source { name: "below/text.yaml".to_owned(), path: text.clone(), program: false },
        ];
        let cache = folder.path().join("cache");
        let archive = of(&cache, "f", &sources).unwrap();
        // Python's zipfile checks the sums.
        let script = "import sys, zipfile\n\
                      z = zipfile.ZipFile(sys.argv[1])\n\
                      assert z.testzip() is None\n\
                      for i in z.infolist(): print(i.filename, i.file_size, oct(i.external_attr >> 16))";
        let output =
            std::process::Command::new("python3").args(["-c", script]).arg(&archive).output().unwrap();
        let listed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(listed, "bootstrap 22 0o100755\nbelow/text.yaml 5000 0o100644\n");

        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let before = modified(&archive);
        assert_eq!(of(&cache, "f", &sources).unwrap(), archive);
        assert_eq!(modified(&archive), before, "an unchanged archive is kept");
        fs::write(&text, "other").unwrap();
        assert_ne!(of(&cache, "f", &sources).unwrap(), archive, "a changed file makes another archive");
    }
}
