#include "data/record_scan.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::data {
namespace {

bool IsJsonBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

absl::Status At(int64_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(line, ": ", what));
}

// A record on each line that is not blank: JSON lines, text.
class LineScanner final : public RecordScanner {
 public:
  absl::Status Feed(absl::string_view bytes) override {
    const char* const end = bytes.data() + bytes.size();
    for (const char* at = bytes.data(); at < end;) {
      if (!in_record_ && IsJsonBlank(*at)) {
        if (*at == '\n') {
          line_begin_ = Offset(at, end, bytes.size()) + 1;
          ++line_;
        }
        ++at;
        continue;
      }
      if (!in_record_) places_.Add(line_begin_, line_);
      in_record_ = true;
      const void* const newline = std::memchr(at, '\n', static_cast<size_t>(end - at));
      if (newline == nullptr) break;
      at = static_cast<const char*>(newline) + 1;
      in_record_ = false;
      line_begin_ = Offset(at, end, bytes.size());
      ++line_;
    }
    passed_ += bytes.size();
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    places_.end = passed_;
    return absl::OkStatus();
  }

 private:
  uint64_t Offset(const char* at, const char* end, size_t size) const {
    return passed_ + size - static_cast<size_t>(end - at);
  }

  uint64_t passed_ = 0;
  uint64_t line_begin_ = 0;
  int64_t line_ = 1;
  bool in_record_ = false;
};

// A list of objects. What is inside the objects is left to their parser, but for strings and brackets.
class JsonListScanner final : public RecordScanner {
 public:
  absl::Status Feed(absl::string_view bytes) override {
    for (const char c : bytes) {
      if (absl::Status status = Take(c); !status.ok()) return status;
      if (c == '\n') ++line_;
      ++offset_;
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    switch (state_) {
      case State::kBeforeList:
        return At(line_, "the file is empty; a JSON list of objects is expected");
      case State::kInObject:
      case State::kInString:
      case State::kEscaped:
        return At(object_line_, "the object that begins here never ends");
      case State::kBeforeFirst:
      case State::kBeforeNext:
      case State::kAfterObject:
        return At(line_, "the list never ends: ']' is missing");
      case State::kAfterList:
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

 private:
  enum class State { kBeforeList, kBeforeFirst, kBeforeNext, kInObject, kInString, kEscaped, kAfterObject, kAfterList };

  absl::Status Take(char c) {
    switch (state_) {
      case State::kInString:
        if (c == '\\') state_ = State::kEscaped;
        if (c == '"') state_ = State::kInObject;
        return absl::OkStatus();
      case State::kEscaped:
        state_ = State::kInString;
        return absl::OkStatus();
      case State::kInObject:
        return TakeInObject(c);
      default:
        return IsJsonBlank(c) ? absl::OkStatus() : TakeBetween(c);
    }
  }

  absl::Status TakeInObject(char c) {
    if (c == '"') state_ = State::kInString;
    if (c == '{' || c == '[') ++depth_;
    if ((c == '}' || c == ']') && --depth_ == 0) {
      state_ = State::kAfterObject;
      places_.end = offset_ + 1;
    }
    return absl::OkStatus();
  }

  absl::Status TakeBetween(char c) {
    const std::string found = absl::StrCat("'", EscapeForMessage(absl::string_view(&c, 1)), "'");
    switch (state_) {
      case State::kBeforeList:
        if (c == '[') {
          state_ = State::kBeforeFirst;
          return absl::OkStatus();
        }
        return At(line_, absl::StrCat("a JSON list of objects is expected, which begins with '[', not ", found,
                                      c == '{' ? "; a file with an object on each line is of the format jsonl" : ""));
      case State::kAfterList:
        return At(line_, absl::StrCat(found, " after the end of the list"));
      case State::kAfterObject:
        if (c != ',' && c != ']') return At(line_, absl::StrCat(found, " between objects; ',' or ']' is expected"));
        state_ = c == ',' ? State::kBeforeNext : State::kAfterList;
        return absl::OkStatus();
      default:
        if (c == ']' && state_ == State::kBeforeFirst) {
          state_ = State::kAfterList;
          return absl::OkStatus();
        }
        if (c != '{')
          return At(line_, absl::StrCat("the list holds something that is no object: it begins with ", found));
        places_.Add(offset_, line_);
        object_line_ = line_;
        depth_ = 1;
        state_ = State::kInObject;
        return absl::OkStatus();
    }
  }

  State state_ = State::kBeforeList;
  uint64_t offset_ = 0;
  int64_t line_ = 1;
  int64_t object_line_ = 0;
  int64_t depth_ = 0;
};

// The header is the first record. A quote opens a quoted field only where the field begins; elsewhere it is for the
// parser of the record to refuse, and must not swallow the records that follow.
class CsvScanner final : public RecordScanner {
 public:
  absl::Status Feed(absl::string_view bytes) override {
    for (const char c : bytes) {
      Take(c);
      if (c == '\n') ++line_;
      ++offset_;
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    places_.end = offset_;
    return absl::OkStatus();
  }

 private:
  enum class State { kBetween, kFieldBegin, kPlain, kQuoted, kQuoteInQuoted };

  void Take(char c) {
    if (state_ == State::kBetween) {
      if (c == '\n' || c == '\r') return;
      places_.Add(offset_, line_);
      state_ = State::kFieldBegin;
    }
    if (state_ == State::kQuoted) {
      if (c == '"') state_ = State::kQuoteInQuoted;
    } else if (c == '\n') {
      state_ = State::kBetween;
    } else if (c == ',') {
      state_ = State::kFieldBegin;
    } else if (c == '"' && state_ != State::kPlain) {
      state_ = State::kQuoted;
    } else {
      state_ = State::kPlain;
    }
  }

  State state_ = State::kBetween;
  uint64_t offset_ = 0;
  int64_t line_ = 1;
};

}  // namespace

std::unique_ptr<RecordScanner> MakeScanner(Format format) {
  if (format == Format::kJson) return std::make_unique<JsonListScanner>();
  if (format == Format::kCsv) return std::make_unique<CsvScanner>();
  return std::make_unique<LineScanner>();
}

}  // namespace tdock::data
