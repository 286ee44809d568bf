#include "data/record_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/beside_program.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/parquet_file.h"
#include "data/record_parse.h"
#include "data/record_scan.h"

namespace tdock::data {
namespace {

constexpr size_t kScanBytes = size_t{1} << 20;  // read at once while records are looked for
constexpr size_t kReadBytes = size_t{1} << 20;  // of consecutive records read at once
constexpr int64_t kRecordsWithNames = 100;
constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

constexpr std::array<std::pair<Format, absl::string_view>, 5> kFormats = {{{Format::kJsonLines, "jsonl"},
                                                                           {Format::kJson, "json"},
                                                                           {Format::kCsv, "csv"},
                                                                           {Format::kText, "text"},
                                                                           {Format::kParquet, "parquet"}}};

// A file of text, whose records lie one after another.
class TextFile final : public RecordFile {
 public:
  static absl::StatusOr<std::unique_ptr<RecordFile>> Open(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                          Format format, const RecordLimits& limits) {
    std::unique_ptr<TextFile> made(new TextFile(std::move(file), name, format, limits));
    TDOCK_RETURN_IF_ERROR(made->Scan());
    TDOCK_RETURN_IF_ERROR(format == Format::kCsv ? made->TakeHeader() : made->CollectNames());
    return made;
  }

  int64_t size() const override { return static_cast<int64_t>(places_.begins.size() - first_); }
  const std::vector<std::string>& columns() const override { return columns_; }
  absl::StatusOr<std::optional<std::string>> Lacking(std::span<const std::string> wanted) const override;
  text::ContentHash content() const override { return content_; }
  std::string Place(int64_t index) const override;
  std::vector<absl::StatusOr<Record>> Read(std::span<const int64_t> indexes,
                                           std::span<const std::string> wanted) const override;

 private:
  TextFile(std::unique_ptr<ReadableFile> file, absl::string_view name, Format format, const RecordLimits& limits)
      : file_(std::move(file)), name_(EscapeUnprintable(name)), format_(format), limits_(limits) {}

  absl::Status Scan();
  absl::Status TakeHeader();
  absl::Status CollectNames();
  absl::StatusOr<std::vector<std::string>> NamesIn(size_t record, RecordParser& parser, std::string& buffer) const;
  uint64_t Begin(size_t record) const { return places_.begins[record]; }
  uint64_t End(size_t record) const {
    return record + 1 < places_.begins.size() ? places_.begins[record + 1] : places_.end;
  }
  bool IsTooLong(size_t record) const {
    return End(record) - Begin(record) > static_cast<uint64_t>(limits_.max_record_bytes);
  }
  absl::StatusOr<absl::string_view> Load(std::string& buffer, uint64_t begin, uint64_t end) const;
  void ReadRun(std::span<const int64_t> run, std::span<const std::string> wanted, RecordParser& parser,
               std::string& buffer, std::vector<absl::StatusOr<Record>>& records) const;
  absl::Status TooLong(size_t record) const;

  const std::unique_ptr<ReadableFile> file_;
  const std::string name_;  // for messages
  const Format format_;
  const RecordLimits limits_;
  RecordPlaces places_;
  size_t first_ = 0;  // the first record that is no header
  std::vector<std::string> columns_;
  text::ContentHash content_;
};

absl::Status TextFile::Scan() {
  const std::unique_ptr<RecordScanner> scanner = MakeScanner(format_);
  text::ContentHasher hasher;
  std::string buffer;
  uint64_t skipped = 0;
  for (uint64_t offset = 0; offset < file_->size();) {
    buffer.resize(std::min<uint64_t>(kScanBytes, file_->size() - offset));
    TDOCK_RETURN_IF_ERROR(file_->ReadAt(offset, buffer));
    hasher.Add(buffer);
    absl::string_view bytes = buffer;
    if (offset == 0 && absl::ConsumePrefix(&bytes, kByteOrderMark)) skipped = kByteOrderMark.size();
    offset += buffer.size();
    if (absl::Status status = scanner->Feed(bytes); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name_, ":", status.message()));
    }
  }
  if (absl::Status status = scanner->Finish(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(name_, ":", status.message()));
  }
  places_ = scanner->TakePlaces();
  for (uint64_t& begin : places_.begins) begin += skipped;
  places_.end += skipped;
  places_.begins.shrink_to_fit();
  places_.lines.shrink_to_fit();
  content_ = hasher.Value();
  return absl::OkStatus();
}

absl::Status TextFile::TakeHeader() {
  if (places_.begins.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": the file is empty; a header with column names is expected"));
  }
  if (IsTooLong(0)) return TooLong(0);
  std::string buffer;
  TDOCK_ASSIGN_OR_RETURN(const absl::string_view bytes, Load(buffer, Begin(0), End(0)));
  absl::StatusOr<std::vector<std::string>> names = MakeParser(format_, limits_, {})->Names(bytes);
  if (!names.ok()) return Annotate(names.status(), absl::StrCat(Place(0), ": the header"));
  absl::flat_hash_set<absl::string_view> seen;
  for (const std::string& name : *names) {
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(Place(0), ": the header has the column '", EscapeForMessage(name), "' twice"));
    }
  }
  columns_ = *std::move(names);
  first_ = 1;
  return absl::OkStatus();
}

absl::Status TextFile::CollectNames() {
  if (format_ == Format::kText) {
    columns_ = {"text"};
    return absl::OkStatus();
  }
  const std::unique_ptr<RecordParser> parser = MakeParser(format_, limits_, {});
  absl::flat_hash_set<std::string> seen;
  std::string buffer;
  const auto records = static_cast<size_t>(std::min(size(), kRecordsWithNames));
  for (size_t record = 0; record < records; ++record) {
    const absl::StatusOr<std::vector<std::string>> names = NamesIn(record, *parser, buffer);
    if (absl::IsInvalidArgument(names.status())) continue;  // told when the record is read
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      if (static_cast<int64_t>(columns_.size()) < limits_.max_columns && seen.insert(name).second)
        columns_.push_back(name);
    }
  }
  return absl::OkStatus();
}

// InvalidArgument, with the place, for a bad record.
absl::StatusOr<std::vector<std::string>> TextFile::NamesIn(size_t record, RecordParser& parser,
                                                           std::string& buffer) const {
  if (IsTooLong(record)) return TooLong(record);
  TDOCK_ASSIGN_OR_RETURN(const absl::string_view bytes, Load(buffer, Begin(record), End(record)));
  absl::StatusOr<std::vector<std::string>> names = parser.Names(bytes);
  if (!names.ok()) return Annotate(names.status(), Place(static_cast<int64_t>(record - first_)));
  return names;
}

absl::StatusOr<std::optional<std::string>> TextFile::Lacking(std::span<const std::string> wanted) const {
  absl::StatusOr<std::optional<std::string>> lacking = RecordFile::Lacking(wanted);
  if (!*lacking || format_ == Format::kText || format_ == Format::kCsv) return lacking;
  // What is seldom there may first come late.
  const std::unique_ptr<RecordParser> parser = MakeParser(format_, limits_, {});
  absl::flat_hash_set<std::string> unseen(wanted.begin(), wanted.end());
  std::optional<absl::Status> first_bad;
  bool any_read = false;
  std::string buffer;
  for (size_t record = 0; record < places_.begins.size() && !unseen.empty(); ++record) {
    const absl::StatusOr<std::vector<std::string>> names = NamesIn(record, *parser, buffer);
    if (names.ok()) {
      any_read = true;
      for (const std::string& name : *names) unseen.erase(name);
    } else if (!absl::IsInvalidArgument(names.status())) {
      return names.status();
    } else if (!first_bad) {
      first_bad = names.status();
    }
  }
  if (first_bad && !any_read) return *first_bad;
  for (const std::string& name : wanted) {
    if (unseen.contains(name)) return name;
  }
  return std::nullopt;
}

// Bytes [begin, end) of the file, in `buffer`, with the padding that parsers need.
absl::StatusOr<absl::string_view> TextFile::Load(std::string& buffer, uint64_t begin, uint64_t end) const {
  const size_t size = end - begin;
  if (buffer.size() < size + kParserPadding) buffer.resize(size + kParserPadding);
  TDOCK_RETURN_IF_ERROR(file_->ReadAt(begin, std::span(buffer.data(), size)));
  return absl::string_view(buffer.data(), size);
}

absl::Status TextFile::TooLong(size_t record) const {
  return absl::InvalidArgumentError(absl::StrCat(Place(static_cast<int64_t>(record - first_)), ": the record has ",
                                                 End(record) - Begin(record), " bytes; at most ",
                                                 limits_.max_record_bytes, " are read"));
}

std::string TextFile::Place(int64_t index) const {
  const size_t record = first_ + static_cast<size_t>(index);
  const size_t known = record / RecordPlaces::kLineStep;
  int64_t line = places_.lines[known];
  std::string buffer;
  for (uint64_t at = Begin(known * RecordPlaces::kLineStep); at < Begin(record);) {
    const uint64_t end = std::min<uint64_t>(at + kReadBytes, Begin(record));
    const absl::StatusOr<absl::string_view> bytes = Load(buffer, at, end);
    if (!bytes.ok()) return absl::StrCat(name_, ": record ", index + 1);
    line += std::count(bytes->begin(), bytes->end(), '\n');
    at = end;
  }
  return absl::StrCat(name_, ":", line);
}

// Consecutive records that are short enough to be read together.
void TextFile::ReadRun(std::span<const int64_t> run, std::span<const std::string> wanted, RecordParser& parser,
                       std::string& buffer, std::vector<absl::StatusOr<Record>>& records) const {
  const size_t first = first_ + static_cast<size_t>(run.front());
  const uint64_t begin = Begin(first);
  const absl::StatusOr<absl::string_view> bytes = Load(buffer, begin, End(first + run.size() - 1));
  for (size_t record = first; record < first + run.size(); ++record) {
    if (!bytes.ok()) {
      records.emplace_back(bytes.status());
      continue;
    }
    records.push_back(parser.Parse(bytes->substr(Begin(record) - begin, End(record) - Begin(record)), wanted));
    if (!records.back().ok()) {
      records.back() = Annotate(records.back().status(), Place(static_cast<int64_t>(record - first_)));
    }
  }
}

std::vector<absl::StatusOr<Record>> TextFile::Read(std::span<const int64_t> indexes,
                                                   std::span<const std::string> wanted) const {
  const std::unique_ptr<RecordParser> parser = MakeParser(format_, limits_, columns_);
  std::string buffer;
  std::vector<absl::StatusOr<Record>> records;
  records.reserve(indexes.size());
  for (size_t at = 0; at < indexes.size();) {
    const size_t first = first_ + static_cast<size_t>(indexes[at]);
    TDOCK_CHECK(indexes[at] >= 0 && first < places_.begins.size(), "an index lies within the file");
    if (IsTooLong(first)) {
      records.emplace_back(TooLong(first));
      ++at;
      continue;
    }
    size_t count = 1;
    while (at + count < indexes.size() && indexes[at + count] == indexes[at] + static_cast<int64_t>(count) &&
           first + count < places_.begins.size() && End(first + count) - Begin(first) <= kReadBytes &&
           !IsTooLong(first + count)) {
      ++count;
    }
    ReadRun(indexes.subspan(at, count), wanted, *parser, buffer, records);
    at += count;
  }
  return records;
}

constexpr char kReader[] = "libtdock_data_parquet.so";

absl::StatusOr<OpenParquetFunction*> LoadReader() {
  const absl::StatusOr<void*> function = LoadBesideProgram(kReader, kOpenParquet, "the reader of Parquet files");
  if (!function.ok()) {
    return absl::UnimplementedError(
        absl::StrCat(function.status().message(),
                     "; it needs Arrow, which pip install \"transfer-dock[parquet]\" installs for a package, ",
                     "and `make build` for a build of the sources"));
  }
  return reinterpret_cast<OpenParquetFunction*>(*function);
}

}  // namespace

bool ReadsParquet() { return LoadReader().ok(); }

absl::StatusOr<std::unique_ptr<RecordFile>> OpenParquet(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                        const RecordLimits& limits) {
  const absl::StatusOr<OpenParquetFunction*> open = LoadReader();
  if (!open.ok()) return Annotate(open.status(), name);
  absl::StatusOr<std::unique_ptr<RecordFile>> opened;
  (*open)(std::move(file), name, limits, &opened);
  return opened;
}

absl::string_view FormatName(Format format) {
  for (const auto& [known, name] : kFormats) {
    if (known == format) return name;
  }
  return "";
}

absl::StatusOr<Format> FormatOfPath(absl::string_view path) {
  if (absl::EndsWith(path, ".jsonl") || absl::EndsWith(path, ".ndjson")) return Format::kJsonLines;
  if (absl::EndsWith(path, ".json")) return Format::kJson;
  if (absl::EndsWith(path, ".csv")) return Format::kCsv;
  if (absl::EndsWith(path, ".txt")) return Format::kText;
  if (absl::EndsWith(path, ".parquet")) return Format::kParquet;
  for (const char* const ending : {".gz", ".bz2", ".xz", ".zst", ".zip"}) {
    if (!absl::EndsWith(path, ending)) continue;
    return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path), ": compressed files (", ending,
                                                   ") are not supported; unpack it, as with gunzip"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(EscapeUnprintable(path),
                   ": the name does not tell the format; set data.format, or use the extension .jsonl, .ndjson, ",
                   ".json, .csv, .txt or .parquet"));
}

absl::StatusOr<std::unique_ptr<RecordFile>> OpenRecordFile(Env& env, const std::string& path, Format format,
                                                           const RecordLimits& limits) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, env.OpenForReading(path));
  return OpenRecordFile(std::move(file), path, format, limits);
}

absl::StatusOr<std::unique_ptr<RecordFile>> OpenRecordFile(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                           Format format, const RecordLimits& limits) {
  if (format == Format::kParquet) return OpenParquet(std::move(file), name, limits);
  return TextFile::Open(std::move(file), name, format, limits);
}

}  // namespace tdock::data
