// The grammars of calls in replies. Internal to this module.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/replies/reply_json.h"
#include "text/replies/reply_parser.h"

namespace tdock::text {

inline constexpr size_t kMaxToolNameBytes = 256;

// Text that arrives in pieces, as a grammar takes it. Not thread-safe.
class ReplyText {
 public:
  void Add(absl::string_view text) { text_.append(text.data(), text.size()); }
  // No more comes: what may be the beginning of a mark is none.
  void End() { ended_ = true; }
  bool ended() const { return ended_; }

  absl::string_view rest() const { return absl::string_view(text_).substr(at_); }
  bool empty() const { return at_ == text_.size(); }

  enum class Match {
    kNo,
    kPart,  // more text is needed to say
    kWhole
  };
  // Compares the beginning of the rest with `mark`.
  Match At(absl::string_view mark) const;

  // The first of `marks` in the rest.
  struct Found {
    size_t before = 0;  // bytes that stand before it, or that certainly belong to none of them
    int mark = -1;      // its number; -1: there is none yet
  };
  Found Find(std::span<const absl::string_view> marks) const;

  // Takes bytes from the front of the rest, and keeps them for TakeRead().
  void Read(size_t bytes);
  void SkipSpace();
  // Reads up to `mark` and over it. kPart: more text is needed; kNo: there are more than `max_bytes` before it, of
  // which only those are read, and `into` has them.
  Match ReadUntil(absl::string_view mark, size_t max_bytes, std::string& into);
  // The same up to one of these characters, and not over it.
  Match ReadUpTo(absl::string_view characters, size_t max_bytes, std::string& into);
  // Takes what was read since the last call.
  std::string TakeRead() { return std::exchange(read_, {}); }
  // Takes bytes from the front of the rest.
  std::string TakeOut(size_t bytes);

 private:
  void Advance(size_t bytes);

  std::string text_, read_;
  size_t at_ = 0;  // where the rest begins
  bool ended_ = false;
};

// Collects what is read of a reply. Not thread-safe.
class ReplySink {
 public:
  ReplySink(ReplyForm form, const ReplyOptions& options) : form_(form), options_(options) {}

  void AddReasoning(absl::string_view text);
  void AddContent(absl::string_view text);
  // Content as it is.
  void AddRest(absl::string_view text);
  // Another piece of reasoning, or of content, begins behind one that there may be.
  void ParagraphOfReasoning();
  void ParagraphOfContent();

  // A call begins; without an `id` it gets one. False: there are too many.
  bool BeginCall(std::string name, std::string id = {});
  void AddArguments(absl::string_view json);
  // The call has ended.
  void EndCall();
  // The call that has begun, if any, is none.
  void DropCall() { in_call_ = false; }
  const std::string& arguments() const { return call_.arguments; }

  void AddBroken(absl::string_view text, absl::string_view why);
  // No more comes.
  void Finish();

  std::vector<ReplyDelta> TakeDeltas() { return std::exchange(deltas_, {}); }
  const ParsedReply& reply() const { return reply_; }
  const ReplyOptions& options() const { return options_; }
  // The types of the arguments of all tools.
  const ArgumentTypes& types();

 private:
  void Put(ReplyDelta::Kind kind, std::string& whole, absl::string_view text);
  std::string IdOf(size_t call) const;

  const ReplyForm form_;
  const ReplyOptions& options_;
  ParsedReply reply_;
  std::vector<ReplyDelta> deltas_;
  std::unique_ptr<const ArgumentTypes> types_;
  ToolCall call_;
  size_t begun_ = 0;  // calls
  bool in_call_ = false;
  bool trims_ = false;                                   // white space at the ends of the content is none of it
  std::string spaces_in_reasoning_, spaces_in_content_;  // at the end; of it once more text follows
};

// One grammar: what follows the mark that begins calls. Not thread-safe.
class CallGrammar {
 public:
  enum class Result {
    kMore,    // it goes on
    kDone,    // the calls have ended
    kBroken,  // why() says what is wrong with the call
    kNoCall   // what seemed to be a call is text
  };
  virtual ~CallGrammar() = default;
  // Reads on.
  virtual Result Read(ReplyText& text, ReplySink& sink) = 0;
  // The text has ended.
  virtual Result End(ReplyText& text, ReplySink& sink) = 0;
  const std::string& why() const { return why_; }

 protected:
  Result Broken(std::string why) {
    why_ = std::move(why);
    return Result::kBroken;
  }
  Result Begin(ReplySink& sink, const std::string& name, std::string id = {});
  // A call has ended; what is broken later does not concern it.
  static void EndCall(ReplyText& text, ReplySink& sink) {
    sink.EndCall();
    text.TakeRead();
  }

 private:
  std::string why_;
};

// The grammar of what follows `mark`, one of the form's MarksOf().calls_begin. Not of kHarmony.
std::unique_ptr<CallGrammar> CallsBehind(ReplyForm form, absl::string_view mark, const ReplyOptions& options);
// The grammar of kLlama3 without a mark: objects that follow nothing, or text that looks like them.
std::unique_ptr<CallGrammar> BareCalls(const ReplyOptions& options);
// The grammar of kHarmony: the arguments of a tool, to the end of the message.
std::unique_ptr<CallGrammar> MessageToTool(std::string tool, const ReplyOptions& options);

// Parts of CallsBehind(). `mark` of ObjectBefore() ends its call.
std::unique_ptr<CallGrammar> ObjectBefore(absl::string_view mark, const ReplyOptions& options);
std::unique_ptr<CallGrammar> TaggedCalls(ReplyForm form, absl::string_view mark, const ReplyOptions& options);
std::unique_ptr<CallGrammar> GemmaCalls(absl::string_view mark, const ReplyOptions& options);

// {"name": …, "arguments": {…}}, as it arrives. Its arguments are sent on while they do.
class CallObject {
 public:
  // `tentative`: an object that is no call is text.
  CallObject(const ReplyOptions& options, bool tentative)
      : scanner_(options.max_depth), max_depth_(options.max_depth), tentative_(tentative) {}

  bool begun() const { return !body_.empty(); }
  // kDone: the object is whole; its call has begun, and is to be ended.
  CallGrammar::Result Read(ReplyText& text, ReplySink& sink);
  // The text ends within it.
  CallGrammar::Result End();
  const std::string& why() const { return why_; }

 private:
  // Its name is known, and its arguments have begun.
  bool is_call() const;
  CallGrammar::Result Push(char c);
  void EndValue();
  bool BeginStream(ReplySink& sink);
  void Stream(ReplySink& sink);
  CallGrammar::Result Finish(ReplySink& sink);
  CallGrammar::Result Broken(std::string why);

  JsonScanner scanner_;
  const int max_depth_;
  const bool tentative_;
  std::string body_, name_, why_;
  size_t value_begin_ = std::string::npos;
  size_t arguments_begin_ = std::string::npos, arguments_end_ = std::string::npos;
  size_t streamed_ = 0;  // of the body
  bool streams_ = false;
};

// An object of arguments, as it arrives, of a call that has begun.
class ArgumentsObject {
 public:
  explicit ArgumentsObject(const ReplyOptions& options) : scanner_(options.max_depth), max_depth_(options.max_depth) {}

  bool begun() const { return begun_; }
  CallGrammar::Result Read(ReplyText& text, ReplySink& sink);
  const std::string& why() const { return why_; }

 private:
  JsonScanner scanner_;
  const int max_depth_;
  bool begun_ = false;
  std::string why_;
};

}  // namespace tdock::text
