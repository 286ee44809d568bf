// The grammars of calls whose arguments are JSON objects.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/replies/reply_calls.h"

namespace tdock::text {
namespace {

using Result = CallGrammar::Result;
using Match = ReplyText::Match;

constexpr size_t kMaxHeadBytes = 512;

// {"name": …, "arguments": {…}}</tool_call>
class ClosedObject final : public CallGrammar {
 public:
  ClosedObject(const ReplyOptions& options, absl::string_view close)
      : object_(options, /*tentative=*/false), close_(close) {}

  Result Read(ReplyText& text, ReplySink& sink) override {
    if (!closing_) {
      if (!object_.begun()) text.SkipSpace();
      const Result read = object_.Read(text, sink);
      if (read != Result::kDone) return read == Result::kBroken ? Broken(object_.why()) : read;
      closing_ = true;
    }
    text.SkipSpace();
    const Match close = text.At(close_);
    if (close == Match::kPart) return Result::kMore;
    if (close == Match::kNo) return Broken(absl::StrCat("its object is not followed by ", close_));
    text.Read(close_.size());
    EndCall(text, sink);
    return Result::kDone;
  }
  Result End(ReplyText&, ReplySink&) override { return Broken(absl::StrCat("it has no ", close_)); }

 private:
  CallObject object_;
  const absl::string_view close_;
  bool closing_ = false;
};

// {"name": …, "parameters": {…}}; {…}
class ObjectList final : public CallGrammar {
 public:
  ObjectList(const ReplyOptions& options, bool tentative) : options_(options), object_(Object(tentative)) {}

  Result Read(ReplyText& text, ReplySink& sink) override {
    for (;;) {
      if (object_ == nullptr) {
        text.SkipSpace();
        if (text.empty()) return Result::kMore;
        if (text.At(semicolon_ ? "{" : ";") == Match::kNo) return Result::kDone;
        if (!std::exchange(semicolon_, true)) {
          text.Read(1);
          continue;
        }
        semicolon_ = false;
        object_ = Object(/*tentative=*/false);
      }
      if (!object_->begun()) text.SkipSpace();
      const Result read = object_->Read(text, sink);
      if (read != Result::kDone) return read == Result::kBroken ? Broken(object_->why()) : read;
      EndCall(text, sink);
      object_.reset();
    }
  }
  Result End(ReplyText&, ReplySink&) override {
    if (object_ == nullptr) return Result::kDone;
    const Result end = object_->End();
    return end == Result::kBroken ? Broken(object_->why()) : end;
  }

 private:
  std::unique_ptr<CallObject> Object(bool tentative) const { return std::make_unique<CallObject>(options_, tentative); }

  const ReplyOptions& options_;
  std::unique_ptr<CallObject> object_;  // null: behind one
  bool semicolon_ = false;              // behind one, too
};

// [{"name": …, "arguments": {…}}, …], or name[CALL_ID]id[ARGS]{…}
class MistralCalls final : public CallGrammar {
 public:
  explicit MistralCalls(const ReplyOptions& options) : options_(options) {}

  Result Read(ReplyText& text, ReplySink& sink) override {
    for (;;) {
      const Result read = Step(text, sink);
      if (read == Result::kMore || read == Result::kBroken || at_ == At::kEnd) return read;
    }
  }
  Result End(ReplyText&, ReplySink&) override {
    return at_ == At::kBehindObject && ended_calls_ ? Result::kDone : Broken("it ends before its arguments do");
  }

 private:
  enum class At { kFirst, kObject, kBehindObject, kName, kBehindName, kId, kArguments, kEnd };

  Result To(At at) {
    at_ = at;
    return Result::kDone;
  }
  // kDone: another step may follow.
  Result Step(ReplyText& text, ReplySink& sink) {
    switch (at_) {
      case At::kFirst:
        text.SkipSpace();
        if (text.empty()) return Result::kMore;
        if (text.At("{") == Match::kWhole) return To(At::kObject);
        if (text.At("[") == Match::kNo) return To(At::kName);
        text.Read(1);
        is_list_ = true;
        return To(At::kObject);
      case At::kObject:
        return ReadObject(text, sink);
      case At::kBehindObject:
        if (!is_list_) return To(At::kEnd);
        text.SkipSpace();
        if (text.empty()) return Result::kMore;
        is_list_ = text.At(",") == Match::kWhole;
        if (!is_list_ && text.At("]") == Match::kNo) return Broken("the list of calls has no ]");
        text.Read(1);
        return To(is_list_ ? At::kObject : At::kEnd);
      case At::kName:
        return ReadName(text);
      case At::kBehindName:
        for (const auto& [mark, next] : {std::pair("[CALL_ID]", At::kId), std::pair("[ARGS]", At::kArguments)}) {
          const Match match = text.At(mark);
          if (match == Match::kNo) continue;
          if (match == Match::kPart) return Result::kMore;
          text.Read(absl::string_view(mark).size());
          if (next == At::kArguments && Begin(sink, name_, id_) == Result::kBroken) return Result::kBroken;
          return To(next);
        }
        // The special token may have been left out of the text.
        if (text.At("{") == Match::kNo) return Broken("its name is not followed by [ARGS]");
        if (Begin(sink, name_, id_) == Result::kBroken) return Result::kBroken;
        return To(At::kArguments);
      case At::kId: {
        const Match read = text.ReadUpTo("[", kMaxHeadBytes, id_);
        if (read == Match::kNo) return Broken("its id has no end");
        return read == Match::kPart ? Result::kMore : To(At::kBehindName);
      }
      case At::kArguments:
        return ReadArguments(text, sink);
      case At::kEnd:
        break;
    }
    return Result::kDone;
  }

  Result ReadObject(ReplyText& text, ReplySink& sink) {
    if (object_ == nullptr) object_ = std::make_unique<CallObject>(options_, /*tentative=*/false);
    if (!object_->begun()) text.SkipSpace();
    const Result read = object_->Read(text, sink);
    if (read != Result::kDone) return read == Result::kBroken ? Broken(object_->why()) : read;
    EndCall(text, sink);
    ended_calls_ = true;
    object_.reset();
    return To(At::kBehindObject);
  }
  Result ReadName(ReplyText& text) {
    const Match read = text.ReadUpTo("[{", kMaxHeadBytes, name_);
    if (read == Match::kNo) return Broken("its name has no end");
    if (read == Match::kPart) return Result::kMore;
    name_ = std::string(absl::StripAsciiWhitespace(name_));
    return To(At::kBehindName);
  }
  Result ReadArguments(ReplyText& text, ReplySink& sink) {
    if (arguments_ == nullptr) arguments_ = std::make_unique<ArgumentsObject>(options_);
    if (!arguments_->begun()) text.SkipSpace();
    const Result read = arguments_->Read(text, sink);
    if (read == Result::kBroken) return Broken(arguments_->why());
    if (read == Result::kMore) return read;
    EndCall(text, sink);
    return To(At::kEnd);
  }

  const ReplyOptions& options_;
  At at_ = At::kFirst;
  bool is_list_ = false, ended_calls_ = false;
  std::string name_, id_;
  std::unique_ptr<CallObject> object_;
  std::unique_ptr<ArgumentsObject> arguments_;
};

// Calls of DeepSeek's models, up to the mark that ends them all:
//
//   V3, R1  <｜tool▁call▁begin｜>function<｜tool▁sep｜>name⏎```json⏎{…}⏎```<｜tool▁call▁end｜>
//   V3.1    <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
class DeepSeekCalls final : public CallGrammar {
 public:
  DeepSeekCalls(const ReplyOptions& options, bool in_call)
      : options_(options), at_(in_call ? At::kHead : At::kBetween) {}

  Result Read(ReplyText& text, ReplySink& sink) override {
    for (;;) {
      const Result read = Step(text, sink);
      if (read == Result::kMore || read == Result::kBroken || at_ == At::kEnd) return read;
    }
  }
  Result End(ReplyText&, ReplySink&) override {
    return at_ == At::kBetween && any_ ? Result::kDone : Broken("it has no <｜tool▁call▁end｜>");
  }

 private:
  enum class At { kBetween, kHead, kBehindHead, kName, kFence, kArguments, kFenceEnd, kCallEnd, kEnd };

  Result To(At at) {
    at_ = at;
    return Result::kDone;
  }
  // Reads `mark` behind white space, and goes on there.
  Result Expect(ReplyText& text, absl::string_view mark, At next) {
    text.SkipSpace();
    const Match match = text.At(mark);
    if (match == Match::kPart) return Result::kMore;
    if (match == Match::kNo) return Broken(absl::StrCat("it has no ", mark, " where it should be"));
    text.Read(mark.size());
    return To(next);
  }
  Result Step(ReplyText& text, ReplySink& sink) {
    switch (at_) {
      case At::kBetween:
        return ReadBetween(text);
      case At::kHead: {
        const Match read = text.ReadUntil("<｜tool▁sep｜>", kMaxHeadBytes, name_);
        if (read == Match::kNo) return Broken("it has no <｜tool▁sep｜>");
        return read == Match::kPart ? Result::kMore : To(At::kBehindHead);
      }
      case At::kBehindHead:
        text.SkipSpace();
        if (text.empty()) return Result::kMore;
        if (text.At("{") == Match::kNo) {
          name_.clear();  // what stood there is the type of the call
          return To(At::kName);
        }
        is_fenced_ = false;
        return BeginArguments(sink);
      case At::kName: {
        const Match read = text.ReadUntil("\n", kMaxHeadBytes, name_);
        if (read == Match::kNo) return Broken("its name has no end");
        is_fenced_ = true;
        return read == Match::kPart ? Result::kMore : To(At::kFence);
      }
      case At::kFence: {
        const Result read = Expect(text, "```json", At::kArguments);
        return read == Result::kDone ? BeginArguments(sink) : read;
      }
      case At::kArguments: {
        if (!arguments_->begun()) text.SkipSpace();
        const Result read = arguments_->Read(text, sink);
        if (read == Result::kBroken) return Broken(arguments_->why());
        return read == Result::kMore ? read : To(is_fenced_ ? At::kFenceEnd : At::kCallEnd);
      }
      case At::kFenceEnd:
        return Expect(text, "```", At::kCallEnd);
      case At::kCallEnd: {
        const Result read = Expect(text, "<｜tool▁call▁end｜>", At::kBetween);
        if (read != Result::kDone) return read;
        EndCall(text, sink);
        any_ = true;
        return read;
      }
      case At::kEnd:
        break;
    }
    return Result::kDone;
  }

  Result ReadBetween(ReplyText& text) {
    constexpr absl::string_view kBegin = "<｜tool▁call▁begin｜>", kEnd = "<｜tool▁calls▁end｜>";
    text.SkipSpace();
    const Match begin = text.At(kBegin), end = text.At(kEnd);
    if (begin == Match::kWhole) {
      text.Read(kBegin.size());
      name_.clear();
      return To(At::kHead);
    }
    if (end != Match::kWhole && (begin == Match::kPart || end == Match::kPart)) return Result::kMore;
    if (!any_) return Broken("it has no <｜tool▁call▁begin｜>");
    if (end == Match::kWhole) text.Read(kEnd.size());
    return To(At::kEnd);
  }
  Result BeginArguments(ReplySink& sink) {
    name_ = std::string(absl::StripAsciiWhitespace(name_));
    if (Begin(sink, name_) == Result::kBroken) return Result::kBroken;
    arguments_ = std::make_unique<ArgumentsObject>(options_);
    return To(At::kArguments);
  }

  const ReplyOptions& options_;
  At at_;
  bool is_fenced_ = false, any_ = false;
  std::string name_;
  std::unique_ptr<ArgumentsObject> arguments_;
};

// {…}<|call|>
class HarmonyCall final : public CallGrammar {
 public:
  HarmonyCall(std::string tool, const ReplyOptions& options) : tool_(std::move(tool)), arguments_(options) {}

  Result Read(ReplyText& text, ReplySink& sink) override {
    if (!std::exchange(begun_, true) && Begin(sink, tool_) == Result::kBroken) return Result::kBroken;
    if (!whole_) {
      if (!arguments_.begun()) text.SkipSpace();
      const Result read = arguments_.Read(text, sink);
      if (read == Result::kBroken) return Broken(arguments_.why());
      if (read == Result::kMore) return read;
      whole_ = true;
    }
    text.SkipSpace();
    bool is_part = false;
    for (const absl::string_view mark : MarksOf(ReplyForm::kHarmony).calls_end) {
      const Match match = text.At(mark);
      is_part |= match == Match::kPart;
      if (match != Match::kWhole) continue;
      text.Read(mark.size());
      EndCall(text, sink);
      return Result::kDone;
    }
    return is_part ? Result::kMore : Broken("its arguments are not followed by <|call|>");
  }
  // The mark is the end token of these models.
  Result End(ReplyText& text, ReplySink& sink) override {
    if (!whole_ || !text.empty()) return Broken("it ends within its arguments");
    EndCall(text, sink);
    return Result::kDone;
  }

 private:
  const std::string tool_;
  ArgumentsObject arguments_;
  bool begun_ = false, whole_ = false;
};

}  // namespace

std::unique_ptr<CallGrammar> CallsBehind(ReplyForm form, absl::string_view mark, const ReplyOptions& options) {
  switch (form) {
    case ReplyForm::kLlama3:
      return std::make_unique<ObjectList>(options, /*tentative=*/false);
    case ReplyForm::kMistral:
      return std::make_unique<MistralCalls>(options);
    case ReplyForm::kDeepSeek:
      if (absl::StrContains(mark, "DSML")) return TaggedCalls(form, mark, options);
      return std::make_unique<DeepSeekCalls>(options, /*in_call=*/mark == "<｜tool▁call▁begin｜>");
    case ReplyForm::kGlm:
    case ReplyForm::kQwenCoder:
      return TaggedCalls(form, mark, options);
    case ReplyForm::kGemma:
      return GemmaCalls(mark, options);
    case ReplyForm::kHermes:
    case ReplyForm::kPlain:
    case ReplyForm::kHarmony:
      break;
  }
  return ObjectBefore("</tool_call>", options);
}

std::unique_ptr<CallGrammar> ObjectBefore(absl::string_view mark, const ReplyOptions& options) {
  return std::make_unique<ClosedObject>(options, mark);
}

std::unique_ptr<CallGrammar> BareCalls(const ReplyOptions& options) {
  return std::make_unique<ObjectList>(options, /*tentative=*/true);
}

std::unique_ptr<CallGrammar> MessageToTool(std::string tool, const ReplyOptions& options) {
  return std::make_unique<HarmonyCall>(std::move(tool), options);
}

}  // namespace tdock::text
