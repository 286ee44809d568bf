#include "data/record_parse.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/json_parser.h"

namespace tdock::data {
namespace {

absl::Status CheckUtf8(absl::string_view bytes) {
  if (const auto bad = FindInvalidUtf8(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("not valid UTF-8 at byte ", *bad + 1, " of the record"));
  }
  return absl::OkStatus();
}

// A line is its own record.
class TextParser final : public RecordParser {
 public:
  absl::StatusOr<Record> Parse(absl::string_view bytes, std::span<const std::string> wanted) override {
    absl::string_view line = bytes.substr(0, bytes.find('\n'));
    absl::ConsumeSuffix(&line, "\r");
    TDOCK_RETURN_IF_ERROR(CheckUtf8(line));
    Record record(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == "text") record[i] = Value(std::string(line));
    }
    return record;
  }
  absl::StatusOr<std::vector<std::string>> Names(absl::string_view) override {
    return std::vector<std::string>{"text"};
  }
};

// RFC 4180: fields apart by commas; one that holds a comma, a quote or a line end stands in quotes, its quotes doubled.
class CsvParser final : public RecordParser {
 public:
  CsvParser(const RecordLimits& limits, const std::vector<std::string>& header) : limits_(limits) {
    for (size_t i = 0; i < header.size(); ++i) columns_.emplace(header[i], i);
  }

  absl::StatusOr<Record> Parse(absl::string_view bytes, std::span<const std::string> wanted) override {
    TDOCK_ASSIGN_OR_RETURN(std::vector<std::string> fields, Fields(bytes));
    if (fields.size() != columns_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the record has ", fields.size(), " fields, the header ", columns_.size()));
    }
    Record record(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto column = columns_.find(wanted[i]);
      if (column == columns_.end()) continue;
      // The format has no other way to say that something is absent.
      const std::string& field = fields[column->second];
      if (!field.empty()) record[i] = Value(field);
    }
    return record;
  }

  absl::StatusOr<std::vector<std::string>> Names(absl::string_view bytes) override { return Fields(bytes); }

 private:
  absl::StatusOr<std::vector<std::string>> Fields(absl::string_view bytes) const {
    std::vector<std::string> fields;
    for (;;) {
      if (static_cast<int64_t>(fields.size()) >= limits_.max_columns) {
        return absl::InvalidArgumentError(absl::StrCat("more than ", limits_.max_columns, " fields"));
      }
      const absl::string_view before = bytes;
      absl::StatusOr<std::string> field = absl::StartsWith(bytes, "\"") ? Quoted(bytes) : Plain(bytes);
      if (!field.ok()) return Annotate(field.status(), absl::StrCat("field ", fields.size() + 1));
      TDOCK_RETURN_IF_ERROR(CheckUtf8(before.substr(0, before.size() - bytes.size())));
      fields.push_back(*std::move(field));
      if (absl::ConsumePrefix(&bytes, ",")) continue;
      if (bytes.empty() || absl::StartsWith(bytes, "\n") || absl::StartsWith(bytes, "\r\n")) return fields;
      return absl::InvalidArgumentError(absl::StrCat("field ", fields.size(), ": '",
                                                     EscapeForMessage(bytes.substr(0, 1)),
                                                     "' where a comma or the end of the line is expected"));
    }
  }

  // Takes a field's bytes off `bytes`.
  static absl::StatusOr<std::string> Plain(absl::string_view& bytes) {
    const size_t size = std::min(bytes.find_first_of(",\r\n\""), bytes.size());
    std::string field(bytes.substr(0, size));
    bytes.remove_prefix(size);
    if (absl::StartsWith(bytes, "\"")) {
      return absl::InvalidArgumentError("a quote inside a field that does not begin with one");
    }
    // The last line of a file may end with a lone CR.
    if (bytes == "\r") bytes.remove_prefix(1);
    return field;
  }

  static absl::StatusOr<std::string> Quoted(absl::string_view& bytes) {
    std::string field;
    bytes.remove_prefix(1);
    for (;;) {
      const size_t quote = bytes.find('"');
      if (quote == absl::string_view::npos) return absl::InvalidArgumentError("the closing quote is missing");
      field.append(bytes.data(), quote);
      bytes.remove_prefix(quote + 1);
      if (!absl::ConsumePrefix(&bytes, "\"")) return field;
      field += '"';
    }
  }

  const RecordLimits limits_;
  absl::flat_hash_map<std::string, size_t> columns_;  // of the header, whose names differ
};

// Takes off what separates an object from the next one in a list.
class JsonListParser final : public RecordParser {
 public:
  explicit JsonListParser(const RecordLimits& limits) : object_(MakeJsonParser(limits)) {}

  absl::StatusOr<Record> Parse(absl::string_view bytes, std::span<const std::string> wanted) override {
    return object_->Parse(Trimmed(bytes), wanted);
  }
  absl::StatusOr<std::vector<std::string>> Names(absl::string_view bytes) override {
    return object_->Names(Trimmed(bytes));
  }

 private:
  static absl::string_view Trimmed(absl::string_view bytes) {
    // An object ends with a bracket, and nothing after it has one.
    return bytes.substr(0, bytes.find_last_of("}]") + 1);
  }

  const std::unique_ptr<RecordParser> object_;
};

}  // namespace

std::unique_ptr<RecordParser> MakeParser(Format format, const RecordLimits& limits,
                                         const std::vector<std::string>& header) {
  switch (format) {
    case Format::kText:
      return std::make_unique<TextParser>();
    case Format::kCsv:
      return std::make_unique<CsvParser>(limits, header);
    case Format::kJson:
      return std::make_unique<JsonListParser>(limits);
    default:
      return MakeJsonParser(limits);
  }
}

}  // namespace tdock::data
