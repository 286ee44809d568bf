#include "text/replies/reply_calls.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"
#include "text/content_hash.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;
using Result = CallGrammar::Result;

constexpr size_t kTidyAt = 1 << 12;

bool IsReplySpace(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }

// `text` without the white space at its end.
size_t BytesBeforeSpaces(absl::string_view text) { return absl::StripTrailingAsciiWhitespace(text).size(); }

bool IsArguments(absl::string_view key) { return key == "arguments" || key == "parameters"; }

// The problem with the name of a tool; empty: there is none.
std::string ProblemOfName(absl::string_view name) {
  if (name.empty()) return "it has no name";
  return name.size() > kMaxToolNameBytes ? absl::StrCat("its name has more than ", kMaxToolNameBytes, " bytes") : "";
}

std::string TooMany(const ReplySink& sink) {
  return absl::StrCat("there are more than ", sink.options().max_calls, " calls");
}

}  // namespace

ReplyText::Match ReplyText::At(absl::string_view mark) const {
  const absl::string_view here = rest().substr(0, mark.size());
  if (here == mark) return Match::kWhole;
  return !ended_ && absl::StartsWith(mark, here) ? Match::kPart : Match::kNo;
}

ReplyText::Found ReplyText::Find(std::span<const absl::string_view> marks) const {
  const absl::string_view text = rest();
  for (size_t i = 0; i < text.size(); ++i) {
    bool is_part = false;
    for (size_t m = 0; m < marks.size(); ++m) {
      if (marks[m].empty() || marks[m].front() != text[i]) continue;
      const absl::string_view here = text.substr(i, marks[m].size());
      if (here == marks[m]) return {i, static_cast<int>(m)};
      is_part |= !ended_ && absl::StartsWith(marks[m], here);
    }
    if (is_part) return {i, -1};
  }
  return {text.size(), -1};
}

void ReplyText::Advance(size_t bytes) {
  at_ += bytes;
  if (at_ < kTidyAt || at_ < text_.size() / 2) return;
  text_.erase(0, at_);
  at_ = 0;
}

void ReplyText::Read(size_t bytes) {
  read_.append(text_, at_, bytes);
  Advance(bytes);
}

void ReplyText::SkipSpace() {
  const absl::string_view text = rest();
  Read(static_cast<size_t>(std::find_if_not(text.begin(), text.end(), IsReplySpace) - text.begin()));
}

ReplyText::Match ReplyText::ReadUntil(absl::string_view mark, size_t max_bytes, std::string& into) {
  const Found found = Find(std::span(&mark, 1));
  const size_t fits = std::min(found.before, max_bytes - into.size());
  absl::StrAppend(&into, rest().substr(0, fits));
  Read(fits);
  if (fits < found.before) return Match::kNo;
  if (found.mark < 0) return Match::kPart;
  Read(mark.size());
  return Match::kWhole;
}

ReplyText::Match ReplyText::ReadUpTo(absl::string_view characters, size_t max_bytes, std::string& into) {
  const size_t before = std::min(rest().find_first_of(characters), rest().size());
  const size_t fits = std::min(before, max_bytes - into.size());
  absl::StrAppend(&into, rest().substr(0, fits));
  Read(fits);
  if (fits < before) return Match::kNo;
  return empty() ? Match::kPart : Match::kWhole;
}

std::string ReplyText::TakeOut(size_t bytes) {
  std::string taken = text_.substr(at_, bytes);
  Advance(bytes);
  return taken;
}

void ReplySink::Put(ReplyDelta::Kind kind, std::string& whole, absl::string_view text) {
  if (text.empty()) return;
  whole.append(text.data(), text.size());
  const size_t call = kind == ReplyDelta::Kind::kArguments ? begun_ - 1 : 0;
  const bool goes_on = !deltas_.empty() && deltas_.back().kind == kind && deltas_.back().call == call;
  if (!goes_on) deltas_.push_back({.kind = kind, .call = call});
  deltas_.back().text.append(text.data(), text.size());
}

void ReplySink::AddReasoning(absl::string_view text) {
  if (reply_.reasoning.empty()) text = absl::StripLeadingAsciiWhitespace(text);
  const size_t end = BytesBeforeSpaces(text);
  if (end > 0) {
    Put(ReplyDelta::Kind::kReasoning, reply_.reasoning, std::exchange(spaces_in_reasoning_, {}));
    Put(ReplyDelta::Kind::kReasoning, reply_.reasoning, text.substr(0, end));
  }
  absl::StrAppend(&spaces_in_reasoning_, text.substr(end));
}

void ReplySink::AddContent(absl::string_view text) {
  if (trims_ && reply_.content.empty()) {
    spaces_in_content_.clear();
    text = absl::StripLeadingAsciiWhitespace(text);
  }
  const size_t end = BytesBeforeSpaces(text);
  if (end > 0) {
    Put(ReplyDelta::Kind::kContent, reply_.content, std::exchange(spaces_in_content_, {}));
    Put(ReplyDelta::Kind::kContent, reply_.content, text.substr(0, end));
  }
  absl::StrAppend(&spaces_in_content_, text.substr(end));
}

void ReplySink::AddRest(absl::string_view text) {
  Put(ReplyDelta::Kind::kContent, reply_.content, std::exchange(spaces_in_content_, {}));
  Put(ReplyDelta::Kind::kContent, reply_.content, text);
}

void ReplySink::ParagraphOfReasoning() {
  trims_ = true;
  if (!reply_.reasoning.empty()) spaces_in_reasoning_ = "\n";
}

void ReplySink::ParagraphOfContent() {
  if (!reply_.content.empty()) spaces_in_content_ = "\n";
}

std::string ReplySink::IdOf(size_t call) const {
  const bool is_short = form_ == ReplyForm::kMistral;  // its templates want nine letters and digits
  if (options_.id_seed.empty()) {
    return is_short ? absl::StrCat("call", absl::Dec(call, absl::kZeroPad5)) : absl::StrCat("call_", call);
  }
  const std::string hash = Hex(HashOf(absl::StrCat(options_.id_seed, "/", call)));
  return is_short ? hash.substr(0, 9) : absl::StrCat("call_", hash.substr(0, 24));
}

bool ReplySink::BeginCall(std::string name, std::string id) {
  if (reply_.calls.size() >= options_.max_calls) return false;
  if (id.empty()) id = IdOf(begun_);
  deltas_.push_back({.kind = ReplyDelta::Kind::kCall, .call = begun_++, .id = id, .text = name});
  call_ = {.id = std::move(id), .name = std::move(name)};
  in_call_ = true;
  return true;
}

void ReplySink::AddArguments(absl::string_view json) { Put(ReplyDelta::Kind::kArguments, call_.arguments, json); }

void ReplySink::EndCall() {
  if (!std::exchange(in_call_, false)) return;
  trims_ = true;
  reply_.calls.push_back(std::exchange(call_, {}));
}

const ArgumentTypes& ReplySink::types() {
  if (types_ == nullptr) types_ = std::make_unique<const ArgumentTypes>(options_.tools, options_.max_depth);
  return *types_;
}

void ReplySink::AddBroken(absl::string_view text, absl::string_view why) {
  if (reply_.broken.size() < options_.max_calls) reply_.broken.push_back(absl::StrCat(Quoted(text), ": ", why));
}

void ReplySink::Finish() {
  if (!trims_) Put(ReplyDelta::Kind::kContent, reply_.content, std::exchange(spaces_in_content_, {}));
}

Result CallGrammar::Begin(ReplySink& sink, const std::string& name, std::string id) {
  // No form marks the end of such a name.
  const bool is_text = std::any_of(name.begin(), name.end(), [](char c) {
    const auto code = static_cast<unsigned char>(c);
    return code <= ' ' || code == 0x7F || absl::StrContains("{}[]()<>\"'`", absl::string_view(&c, 1));
  });
  if (is_text) return Broken(absl::StrCat(Quoted(name), " is no name of a tool"));
  if (std::string problem = ProblemOfName(name); !problem.empty()) return Broken(std::move(problem));
  return sink.BeginCall(name, std::move(id)) ? Result::kDone : Broken(TooMany(sink));
}

Result CallObject::Broken(std::string why) {
  why_ = std::move(why);
  return tentative_ && !is_call() ? Result::kNoCall : Result::kBroken;
}

Result CallObject::End() { return Broken("it ends within its object"); }

Result CallObject::Push(char c) {
  const bool begins = scanner_.depth() == 1 && scanner_.wants_value() && !IsJsonSpace(c);
  if (!scanner_.Push(c)) {
    return Broken(std::string(CheckArguments(body_ + c, max_depth_).message()));
  }
  body_.push_back(c);
  if (begins) {
    value_begin_ = body_.size() - 1;
    const std::string& key = scanner_.key();
    if (tentative_ && key != "name" && key != "type" && key != "id" && !IsArguments(key))
      return Broken("it is no call");
    if (IsArguments(key) && c == '{' && arguments_begin_ == std::string::npos) arguments_begin_ = value_begin_;
  } else if (value_begin_ != std::string::npos && scanner_.depth() == 1 && scanner_.after_value()) {
    EndValue();
  }
  return scanner_.done() ? Result::kDone : Result::kMore;
}

void CallObject::EndValue() {
  const absl::string_view value = absl::string_view(body_).substr(value_begin_);
  if (value_begin_ == arguments_begin_) arguments_end_ = body_.size();
  if (scanner_.key() == "name" && value.front() == '"' && name_.empty()) {
    if (const Json name = ReadJson(value); name.is_string()) name_ = name.get<std::string>();
  }
  value_begin_ = std::string::npos;
}

bool CallObject::is_call() const { return arguments_begin_ != std::string::npos && ProblemOfName(name_).empty(); }

// False: there are too many calls.
bool CallObject::BeginStream(ReplySink& sink) {
  if (streams_ || !is_call()) return true;
  if (!sink.BeginCall(name_)) return false;
  streams_ = true;
  streamed_ = arguments_begin_;
  return true;
}

void CallObject::Stream(ReplySink& sink) {
  const size_t end = std::min(arguments_end_, body_.size());
  if (!streams_ || end <= streamed_) return;
  sink.AddArguments(absl::string_view(body_).substr(streamed_, end - streamed_));
  streamed_ = end;
}

// Calls begin at the same byte whatever the pieces are, and so do errors.
Result CallObject::Read(ReplyText& text, ReplySink& sink) {
  Result result = Result::kMore;
  size_t read = 0;
  for (const char c : text.rest()) {
    result = Push(c);
    if (result == Result::kBroken || result == Result::kNoCall) break;
    ++read;
    if (!BeginStream(sink)) result = Broken(TooMany(sink));
    if (result != Result::kMore) break;
  }
  text.Read(read);
  Stream(sink);
  return result == Result::kDone ? Finish(sink) : result;
}

// The object is whole: whatever streaming did not look at is checked.
Result CallObject::Finish(ReplySink& sink) {
  const absl::StatusOr<Json> call = ParseJsonObject(body_, max_depth_);
  if (!call.ok()) return Broken(std::string(call.status().message()));
  const auto name = call->find("name");
  if (name == call->end() || !name->is_string()) return Broken(R"(it has no "name")");
  name_ = name->get<std::string>();
  if (std::string problem = ProblemOfName(name_); !problem.empty()) return Broken(std::move(problem));
  const bool both = call->contains("arguments") && call->contains("parameters");
  if (both) return Broken(R"(it has "arguments" and "parameters")");
  const auto given = call->find(call->contains("parameters") ? "parameters" : "arguments");
  if (tentative_ && given == call->end()) return Broken(R"(it has no "parameters")");
  if (streams_) return Result::kDone;
  std::string arguments = "{}";
  if (given != call->end() && given->is_object()) {
    arguments = arguments_end_ == std::string::npos ? JsonText(*given)
                                                    : body_.substr(arguments_begin_, arguments_end_ - arguments_begin_);
  } else if (given != call->end() && given->is_string()) {
    const absl::string_view text = absl::StripAsciiWhitespace(given->get_ref<const std::string&>());
    if (!text.empty()) arguments = std::string(text);
    const absl::Status read = CheckArguments(arguments, max_depth_);
    if (!read.ok()) return Broken(absl::StrCat("the text of its arguments: ", read.message()));
  } else if (given != call->end() && !given->is_null()) {
    return Broken(absl::StrCat("the \"", given.key(), "\" are no object"));
  }
  if (!sink.BeginCall(name_)) return Broken(TooMany(sink));
  sink.AddArguments(arguments);
  return Result::kDone;
}

Result ArgumentsObject::Read(ReplyText& text, ReplySink& sink) {
  size_t read = 0;
  const absl::string_view rest = text.rest();
  bool goes_on = true;
  while (read < rest.size() && goes_on && !scanner_.done()) {
    goes_on = scanner_.Push(rest[read]);
    read += goes_on ? 1 : 0;
  }
  if (!goes_on) {
    const std::string tried = absl::StrCat(sink.arguments(), rest.substr(0, read + 1));
    why_ = absl::StrCat("the arguments: ", CheckArguments(tried, max_depth_).message());
  }
  begun_ |= read > 0;
  sink.AddArguments(rest.substr(0, read));
  text.Read(read);
  if (!goes_on) return Result::kBroken;
  if (!scanner_.done()) return Result::kMore;
  const absl::Status whole = CheckArguments(sink.arguments(), max_depth_);
  if (whole.ok()) return Result::kDone;
  why_ = absl::StrCat("the arguments: ", whole.message());
  return Result::kBroken;
}

}  // namespace tdock::text
