// The grammars of calls whose arguments are no JSON: each between tags, or in Gemma's own notation.
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"
#include "text/replies/reply_calls.h"

namespace tdock::text {
namespace {

using Result = CallGrammar::Result;
using Match = ReplyText::Match;

constexpr size_t kMaxWordBytes = 512;
constexpr size_t kAnyBytes = std::string::npos;

// How a form writes a call: name_begin NAME name_end (key_begin KEY key_end VALUE value_end)* call_end.
struct Tags {
  absl::string_view name_begin, name_end, key_begin, key_end, value_end, call_end;
  absl::string_view calls_end = {};  // behind all calls
  bool value_is_on_lines = false;    // of its own: a line end at both ends is not of the value
  bool says_whether_text = false;    // KEY" string="true
};

Tags TagsOf(ReplyForm form, absl::string_view mark) {
  if (form == ReplyForm::kGlm) {
    return {.name_begin = "",
            .name_end = "",
            .key_begin = "<arg_key>",
            .key_end = "</arg_key>",
            .value_end = "</arg_value>",
            .call_end = "</tool_call>"};
  }
  if (form == ReplyForm::kQwenCoder) {
    return {.name_begin = "<function=",
            .name_end = ">",
            .key_begin = "<parameter=",
            .key_end = ">",
            .value_end = "</parameter>",
            .call_end = "</function>",
            .calls_end = "</tool_call>",
            .value_is_on_lines = true};
  }
  return {.name_begin = "<｜DSML｜invoke name=\"",
          .name_end = "\">",
          .key_begin = "<｜DSML｜parameter name=\"",
          .key_end = "\" string=\"",
          .value_end = "</｜DSML｜parameter>",
          .call_end = "</｜DSML｜invoke>",
          .calls_end = absl::StrContains(mark, "tool_calls") ? "</｜DSML｜tool_calls>" : "</｜DSML｜function_calls>",
          .says_whether_text = true};
}

// A value ends with its tag where the next argument or the end of the call follows: other tags are part of it.
class TaggedGrammar final : public CallGrammar {
 public:
  TaggedGrammar(ReplyForm form, absl::string_view mark, const ReplyOptions& options)
      : form_(form), tags_(TagsOf(form, mark)), options_(options) {
    if (mark == tags_.name_begin) at_ = At::kName;  // the calls begin with it
  }

  Result Read(ReplyText& text, ReplySink& sink) override {
    if (object_ != nullptr) return ReadObject(text, sink);
    for (;;) {
      const Result read = Step(text, sink);
      if (object_ != nullptr) return ReadObject(text, sink);
      if (read == Result::kMore || read == Result::kBroken || at_ == At::kEnd) return read;
    }
  }
  Result End(ReplyText& text, ReplySink& sink) override {
    if (object_ != nullptr) {
      object_->End(text, sink);
      return Broken(object_->why());
    }
    return at_ == At::kBehindCall ? Result::kDone : Broken(absl::StrCat("it has no ", tags_.call_end));
  }

 private:
  enum class At { kCall, kName, kNext, kKey, kIsText, kValueBegin, kValue, kBehindValue, kBehindCall, kEnd };

  Result To(At at) {
    at_ = at;
    return Result::kDone;
  }
  // A call as the other models write it, which some of these do, too.
  Result ReadObject(ReplyText& text, ReplySink& sink) {
    const Result read = object_->Read(text, sink);
    return read == Result::kBroken ? Broken(object_->why()) : read;
  }

  Result Step(ReplyText& text, ReplySink& sink) {
    switch (at_) {
      case At::kCall:
        return ReadCall(text);
      case At::kName:
        return ReadName(text, sink);
      case At::kNext:
        return ReadNext(text, sink);
      case At::kKey: {
        const Match read = text.ReadUntil(tags_.key_end, kMaxToolNameBytes, key_);
        if (read == Match::kNo) return Broken(absl::StrCat("an argument's name has no ", tags_.key_end));
        if (read == Match::kPart) return Result::kMore;
        value_.clear();
        is_text_.clear();
        if (tags_.says_whether_text) return To(At::kIsText);
        return To(form_ == ReplyForm::kGlm ? At::kValueBegin : At::kValue);
      }
      case At::kIsText: {
        const Match read = text.ReadUntil("\">", kMaxToolNameBytes, is_text_);
        if (read == Match::kPart) return Result::kMore;
        const bool known = read == Match::kWhole && (is_text_ == "true" || is_text_ == "false");
        return known ? To(At::kValue) : Broken(R"(an argument has neither string="true" nor string="false")");
      }
      case At::kValueBegin: {
        constexpr absl::string_view kValueBegin = "<arg_value>";
        text.SkipSpace();
        const Match match = text.At(kValueBegin);
        if (match == Match::kPart) return Result::kMore;
        if (match == Match::kNo) return Broken(absl::StrCat("the argument ", Quoted(key_), " has no ", kValueBegin));
        text.Read(kValueBegin.size());
        return To(At::kValue);
      }
      case At::kValue: {
        if (text.ReadUntil(tags_.value_end, kAnyBytes, value_) == Match::kPart) return Result::kMore;
        behind_ = std::string(tags_.value_end);
        return To(At::kBehindValue);
      }
      case At::kBehindValue:
        return ReadBehindValue(text, sink);
      case At::kBehindCall:
        return ReadBehindCall(text);
      case At::kEnd:
        break;
    }
    return Result::kDone;
  }

  Result ReadCall(ReplyText& text) {
    text.SkipSpace();
    if (text.empty()) return Result::kMore;
    if (!tags_.says_whether_text && text.At("{") == Match::kWhole) {
      object_ = ObjectBefore("</tool_call>", options_);
      return Result::kDone;
    }
    const Match match = text.At(tags_.name_begin);
    if (match == Match::kPart) return Result::kMore;
    if (match == Match::kNo) return Broken(absl::StrCat("it has no ", tags_.name_begin, "… where it should be"));
    text.Read(tags_.name_begin.size());
    return To(At::kName);
  }
  Result ReadName(ReplyText& text, ReplySink& sink) {
    if (!tags_.name_end.empty()) {
      const Match read = text.ReadUntil(tags_.name_end, kMaxToolNameBytes, name_);
      if (read == Match::kNo) return Broken(absl::StrCat("its name has no ", tags_.name_end));
      if (read == Match::kPart) return Result::kMore;
    } else {
      const Match read = text.ReadUpTo("<\n", kMaxToolNameBytes, name_);
      if (read == Match::kNo) return Broken("its name has no end");
      if (read == Match::kPart) return Result::kMore;
    }
    name_ = std::string(absl::StripAsciiWhitespace(name_));
    keys_.clear();
    if (Begin(sink, name_) == Result::kBroken) return Result::kBroken;
    return To(At::kNext);
  }
  // Another argument, or the end of the call.
  Result ReadNext(ReplyText& text, ReplySink& sink) {
    text.SkipSpace();
    const Match key = text.At(tags_.key_begin), end = text.At(tags_.call_end);
    if (key == Match::kWhole) {
      text.Read(tags_.key_begin.size());
      key_.clear();
      return To(At::kKey);
    }
    if (end == Match::kWhole) {
      text.Read(tags_.call_end.size());
      sink.AddArguments(keys_.empty() ? "{}" : "}");
      EndCall(text, sink);
      name_.clear();
      return To(tags_.calls_end.empty() ? At::kEnd : At::kBehindCall);
    }
    if (key == Match::kPart || end == Match::kPart) return Result::kMore;
    return Broken(absl::StrCat("it goes on neither with ", tags_.key_begin, "… nor with ", tags_.call_end));
  }
  Result ReadBehindValue(ReplyText& text, ReplySink& sink) {
    const absl::string_view rest = text.rest();
    size_t spaces = 0;
    while (spaces < rest.size() && absl::ascii_isspace(static_cast<unsigned char>(rest[spaces]))) ++spaces;
    absl::StrAppend(&behind_, rest.substr(0, spaces));
    text.Read(spaces);
    const Match key = text.At(tags_.key_begin), end = text.At(tags_.call_end);
    if (key == Match::kWhole || end == Match::kWhole) return AddArgument(sink);
    if (key == Match::kPart || end == Match::kPart) return Result::kMore;
    absl::StrAppend(&value_, behind_);
    return To(At::kValue);
  }
  Result AddArgument(ReplySink& sink) {
    if (form_ == ReplyForm::kGlm) key_ = std::string(absl::StripAsciiWhitespace(key_));
    const std::string name = JsonString(key_);
    if (!keys_.insert(name).second) return Broken(absl::StrCat("it has the argument ", Quoted(key_), " twice"));
    absl::string_view value = value_;
    if (tags_.value_is_on_lines) {
      absl::ConsumePrefix(&value, "\n");
      absl::ConsumeSuffix(&value, "\n");
    }
    std::string json;
    if (is_text_ == "true") {
      json = JsonString(value);
    } else if (is_text_.empty()) {
      json = sink.types().ValueOf(name_, key_, value);
    } else if (!JsonValue(value, options_.max_depth).is_discarded()) {
      json = std::string(absl::StripAsciiWhitespace(value));
    } else {
      return Broken(absl::StrCat("the argument ", Quoted(key_), " is not JSON"));
    }
    sink.AddArguments(absl::StrCat(keys_.size() == 1 ? "{" : ", ", name, ": ", json));
    return To(At::kNext);
  }
  Result ReadBehindCall(ReplyText& text) {
    text.SkipSpace();
    const Match next = text.At(tags_.name_begin), end = text.At(tags_.calls_end);
    if (next == Match::kWhole) {
      text.Read(tags_.name_begin.size());
      return To(At::kName);
    }
    if (end != Match::kWhole && (next == Match::kPart || end == Match::kPart)) return Result::kMore;
    if (end == Match::kWhole) text.Read(tags_.calls_end.size());
    return To(At::kEnd);
  }

  const ReplyForm form_;
  const Tags tags_;
  const ReplyOptions& options_;
  At at_ = At::kCall;
  std::string name_, key_, is_text_, value_;
  std::string behind_;          // the tag that may end the value, and white space
  std::set<std::string> keys_;  // of the call
  std::unique_ptr<CallGrammar> object_;
};

// {key:<escape>text<escape>,other:[1,true]}, as it arrives.
class GemmaObject {
 public:
  explicit GemmaObject(const ReplyOptions& options) : max_depth_(static_cast<size_t>(options.max_depth)) {}

  // kDone: the object is whole, and its JSON is among the arguments of the call.
  Result Read(ReplyText& text, ReplySink& sink) {
    Result read = Result::kDone;
    while (read == Result::kDone && at_ != At::kEnd) read = Step(text);
    sink.AddArguments(std::exchange(json_, {}));
    return read;
  }
  const std::string& why() const { return why_; }

 private:
  enum class At { kBegin, kKeyOrEnd, kKey, kBareKey, kColon, kValueOrEnd, kValue, kText, kWord, kBehindValue, kEnd };

  Result To(At at) {
    at_ = at;
    return Result::kDone;
  }
  Result Broken(std::string why) {
    why_ = std::move(why);
    return Result::kBroken;
  }
  Result Step(ReplyText& text) {
    if (at_ != At::kText && at_ != At::kBareKey && at_ != At::kWord) {
      text.SkipSpace();
      if (text.empty()) return Result::kMore;
    }
    const char next = text.empty() ? '\0' : text.rest().front();
    switch (at_) {
      case At::kBegin:
        return next == '{' ? Open(text, '{') : Broken("its name is not followed by {");
      case At::kKeyOrEnd:
        return next == '}' ? Close(text, '}') : To(At::kKey);
      case At::kKey:
        is_key_ = true;
        word_.clear();
        return ReadQuote(text, At::kBareKey);
      case At::kBareKey: {
        const Match read = text.ReadUntil(":", kMaxWordBytes, word_);
        if (read == Match::kNo) return Broken("a name in its arguments has no :");
        if (read == Match::kPart) return Result::kMore;
        word_ = std::string(absl::StripAsciiWhitespace(word_));
        if (word_.empty()) return Broken("an argument has no name");
        absl::StrAppend(&json_, JsonString(word_), ": ");
        return To(At::kValue);
      }
      case At::kColon:
        if (next != ':') return Broken("a name in its arguments has no :");
        text.Read(1);
        json_ += ": ";
        return To(At::kValue);
      case At::kValueOrEnd:
        if (next == ']') return Close(text, ']');
        [[fallthrough]];
      case At::kValue:
        is_key_ = false;
        word_.clear();
        if (next == '{' || next == '[') return Open(text, next);
        return ReadQuote(text, At::kWord);
      case At::kText:
        return ReadText(text);
      case At::kWord:
        return ReadWord(text);
      case At::kBehindValue:
        if (next != ',') return Close(text, next);
        text.Read(1);
        json_ += ", ";
        return To(nested_.back() == '{' ? At::kKey : At::kValue);
      case At::kEnd:
        break;
    }
    return Result::kDone;
  }

  // A text begins, or else what has no quotes does.
  Result ReadQuote(ReplyText& text, At otherwise) {
    bool is_part = false;
    for (const absl::string_view quote : {"<escape>", "<|\"|>"}) {
      const Match match = text.At(quote);
      is_part |= match == Match::kPart;
      if (match != Match::kWhole) continue;
      text.Read(quote.size());
      quote_ = quote;
      return To(At::kText);
    }
    return is_part ? Result::kMore : To(otherwise);
  }
  Result ReadText(ReplyText& text) {
    if (text.ReadUntil(quote_, kAnyBytes, word_) == Match::kPart) return Result::kMore;
    json_ += JsonString(word_);
    return To(is_key_ ? At::kColon : At::kBehindValue);
  }
  // A number, true, false or null.
  Result ReadWord(ReplyText& text) {
    const Match read = text.ReadUpTo(",]} \n\r\t", kMaxWordBytes, word_);
    if (read == Match::kNo) return Broken("a value in its arguments has no end");
    if (read == Match::kPart) return Result::kMore;
    if (word_ == "None") word_ = "null";
    const nlohmann::json value = JsonValue(word_, 1);
    if (!value.is_primitive() || value.is_discarded() || value.is_string()) {
      return Broken(absl::StrCat(Quoted(word_), " in its arguments is no value"));
    }
    json_ += word_;
    return To(At::kBehindValue);
  }
  Result Open(ReplyText& text, char bracket) {
    if (nested_.size() >= max_depth_)
      return Broken(absl::StrCat("more than ", max_depth_, " nested objects and lists"));
    text.Read(1);
    nested_.push_back(bracket);
    json_.push_back(bracket);
    return To(bracket == '{' ? At::kKeyOrEnd : At::kValueOrEnd);
  }
  Result Close(ReplyText& text, char bracket) {
    if (bracket != (nested_.back() == '{' ? '}' : ']'))
      return Broken("a value in its arguments is followed by no , } or ]");
    text.Read(1);
    nested_.pop_back();
    json_.push_back(bracket);
    return To(nested_.empty() ? At::kEnd : At::kBehindValue);
  }

  const size_t max_depth_;
  At at_ = At::kBegin;
  bool is_key_ = false;
  absl::string_view quote_;
  std::string nested_, word_, json_, why_;
};

// call:name{…}<end_function_call>
class GemmaGrammar final : public CallGrammar {
 public:
  GemmaGrammar(absl::string_view close, const ReplyOptions& options)
      : close_(close), max_depth_(options.max_depth), object_(options) {}

  Result Read(ReplyText& text, ReplySink& sink) override {
    constexpr absl::string_view kCall = "call:";
    if (at_ == At::kCall) {
      text.SkipSpace();
      const Match match = text.At(kCall);
      if (match == Match::kPart) return Result::kMore;
      if (match == Match::kNo) return Broken("it has no call:");
      text.Read(kCall.size());
      at_ = At::kName;
    }
    if (at_ == At::kName) {
      const Match read = text.ReadUpTo("{", kMaxToolNameBytes, name_);
      if (read == Match::kNo) return Broken("its name is not followed by {");
      if (read == Match::kPart) return Result::kMore;
      if (Begin(sink, std::string(absl::StripAsciiWhitespace(name_))) == Result::kBroken) return Result::kBroken;
      at_ = At::kObject;
    }
    if (at_ == At::kObject) {
      const Result read = object_.Read(text, sink);
      if (read != Result::kDone) return read == Result::kBroken ? Broken(object_.why()) : read;
      const absl::Status whole = CheckArguments(sink.arguments(), max_depth_);
      if (!whole.ok()) return Broken(absl::StrCat("the arguments: ", whole.message()));
      at_ = At::kEnd;
    }
    text.SkipSpace();
    const Match match = text.At(close_);
    if (match == Match::kPart) return Result::kMore;
    if (match == Match::kNo) return Broken(absl::StrCat("its arguments are not followed by ", close_));
    text.Read(close_.size());
    EndCall(text, sink);
    return Result::kDone;
  }
  Result End(ReplyText&, ReplySink&) override { return Broken(absl::StrCat("it has no ", close_)); }

 private:
  enum class At { kCall, kName, kObject, kEnd };

  const absl::string_view close_;
  const int max_depth_;
  At at_ = At::kCall;
  std::string name_;
  GemmaObject object_;
};

}  // namespace

std::unique_ptr<CallGrammar> TaggedCalls(ReplyForm form, absl::string_view mark, const ReplyOptions& options) {
  return std::make_unique<TaggedGrammar>(form, mark, options);
}

std::unique_ptr<CallGrammar> GemmaCalls(absl::string_view mark, const ReplyOptions& options) {
  return std::make_unique<GemmaGrammar>(mark == "<|tool_call>" ? "<tool_call|>" : "<end_function_call>", options);
}

}  // namespace tdock::text
