# The manifest of a checkpoint: everything except the tensors' bytes, and where those are stored.
#
# A manifest file (`manifest.snapshot`) is a frame of 32 bytes and one message of this schema:
#
#   bytes  0 ..  7   magic: "TRPSNAP" and a line feed
#   bytes  8 .. 11   format version, u32 little-endian (now 1)
#   bytes 12 .. 15   zero
#   bytes 16 .. 23   length of the message in bytes, u64 little-endian
#   bytes 24 .. 31   XXH3-64 of bytes 0 .. 23 followed by the message, u64 little-endian
#   bytes 32 ..      the message, in Cap'n Proto's standard stream framing, to the end of the file
#
# The frame is the same in every version, so that a reader checks for damage before the version, and the
# version before it parses the message. Cap'n Proto's own tool prints a manifest:
#
#   tail -c +33 manifest.snapshot | capnp decode snapshot.capnp Snapshot
#
# Rules for changes: fields are only added, at the end; the default of a new field means "as before".
# The format version grows only if an older reader would misread the file.
#
# Already covered by this format:
# - Parallel or background writing: the manifest does not say who wrote a part, or when.
# - A chunk in a file of its own (unchanged since the last checkpoint and hard-linked from there): it is one
#   more entry in `parts`. Any plain file name is valid.
# - Chunks of equal bytes in one place: ranges may overlap. Bytes that no chunk covers are zero.
# - Dataset cursors, fitted preprocessors and the like: `attachments` if small, tensors if large.

@0xd1f0a6c2b7e94385;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::serialization::schema");

struct Snapshot {
  formatVersion @0 :UInt32;           # As in the frame.

  runId @1 :Text;                     # The run that wrote it.
  step @2 :UInt64;                    # The state after this step; 0 is the state before the first.
  generation @3 :UInt64;              # The generation that wrote it.
  seed @4 :UInt64;
  shards @5 :UInt32;                  # V
  globalBatch @6 :UInt64;             # B, in samples
  treeVersion @7 :UInt32;             # The version of the canonical summation tree.
  programBuildId @8 :Text;
  configurationJson @9 :Text;
  configurationDigest @10 :Text;      # SHA-256 of configurationJson, lower-case hexadecimal.
  dataFingerprint @11 :Text;
  numericsFingerprintJson @12 :Text;  # An object: item -> value, compared item by item.
  metrics @13 :List(Metric);          # In order of name.
  valuesJson @14 :Text;               # The user's small values; part of the state's identity.
  worldSize @15 :UInt32;              # How many workers wrote it. A state of N loads on M.
  createdUnixMs @16 :Int64;           # Milliseconds since 1970-01-01 UTC.

  parts @17 :List(Part);
  tensors @18 :List(Tensor);          # In the order in which the state was tracked; names are unique.
  attachments @19 :List(Attachment);  # In order of name.
  finishesRun @20 :Bool;              # The run was finished here by a decision of its own, before its last step.
  earlierProgramsJson @21 :Text;      # What computed earlier steps, if not this program: a list; empty for none.
}

struct Metric {
  name @0 :Text;
  value @1 :Float64;
}

# A small named item that a component of Troupe stores beside the state and reads back itself.
struct Attachment {
  name @0 :Text;
  json @1 :Text;
}

# A file in the checkpoint's directory.
struct Part {
  file @0 :Text;                      # A plain file name: no separator, not "." or "..".
  sizeBytes @1 :UInt64;
}

struct Tensor {
  name @0 :Text;
  dtype @1 :DType;
  shape @2 :List(UInt64);             # The last dimension varies fastest; empty for a scalar.
  chunks @3 :List(Chunk);             # Their concatenation is the tensor's little-endian bytes.
}

struct Chunk {
  part @0 :UInt32;                    # Index into `parts`.
  offset @1 :UInt64;                  # In the file; a multiple of 4096.
  length @2 :UInt64;                  # In bytes; at most 64 MiB.
  xxh3 @3 :UInt64;                    # XXH3-64 of the bytes, seed 0.
}

# The numbers of troupe::dtype.
enum DType {
  invalid @0;
  f32 @1;
  f64 @2;
  f16 @3;
  bf16 @4;
  i32 @5;
  i64 @6;
  u8 @7;
  i8 @8;
  i16 @9;
  bool @10;
  u16 @11;
  u32 @12;
  u64 @13;
}
