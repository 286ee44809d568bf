#include "text/replies/reply_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "text/replies/reply_calls.h"
#include "text/turn_json.h"

namespace tdock::text {
namespace {

constexpr absl::string_view kMessage = "<|message|>", kChannel = "<|channel|>", kStart = "<|start|>";
constexpr size_t kMaxHeaderBytes = 512;
constexpr size_t kShownBytes = 256;  // of a call that cannot be read

// The header of a message in harmony:
//
//   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>
struct Header {
  std::string channel, recipient;
};

Header HeaderOf(absl::string_view text) {
  // The word behind `mark`, which begins a word itself if it is none of the special tokens.
  const auto word = [&](absl::string_view mark) -> std::string {
    for (size_t at = text.find(mark); at != absl::string_view::npos; at = text.find(mark, at + 1)) {
      const char before = at == 0 ? ' ' : text[at - 1];
      if (mark == "to=" && before != ' ' && before != '>') continue;
      const absl::string_view rest = text.substr(at + mark.size());
      return std::string(rest.substr(0, rest.find_first_of(" <\n\t")));
    }
    return "";
  };
  Header header{.channel = word(kChannel), .recipient = word("to=")};
  if (header.recipient == "assistant" || header.recipient == "all") header.recipient.clear();
  absl::string_view recipient = header.recipient;
  if (absl::ConsumePrefix(&recipient, "functions.")) header.recipient = std::string(recipient);
  return header;
}

}  // namespace

class ReplyParser::Machine {
 public:
  Machine(ReplyForm form, ReplyOptions options)
      : form_(form), marks_(MarksOf(form)), options_(std::move(options)), sink_(form, options_) {
    if (form_ == ReplyForm::kPlain) at_ = At::kRest;
    if (options_.reasoning_open && options_.reads_reasoning && form_ != ReplyForm::kPlain) BeginReasoning();
    FindStops();
  }

  void Push(absl::string_view text) {
    const size_t room = options_.max_bytes - std::min(bytes_, options_.max_bytes);
    bytes_ += text.size();
    text_.Add(text.substr(0, room));
    ReadOn();
    if (text.size() <= room) return;
    if (at_ != At::kRest) {
      EndReading();
      sink_.AddBroken("", absl::StrCat("the reply has more than ", options_.max_bytes, " bytes, which were not read"));
      at_ = At::kRest;
    }
    sink_.AddRest(text.substr(room));
  }

  void Finish() {
    EndReading();
    sink_.Finish();
  }

  ReplySink& sink() { return sink_; }

 private:
  enum class At {
    kBegin,      // of the reply, or of a message in harmony
    kBody,       // behind the reasoning, if any
    kReasoning,  // within it
    kContent,
    kHeader,  // of a message in harmony
    kCalls,
    kBroken,  // in what follows a call that cannot be read
    kRest     // which is content, whatever it is
  };

  bool is_harmony() const { return form_ == ReplyForm::kHarmony; }

  // The marks that are looked for in content, and in what follows a broken call.
  void FindStops() {
    if (is_harmony()) {
      content_stops_ = {"<|end|>", "<|call|>", "<|return|>", kStart, kChannel};
    } else {
      if (options_.reads_calls) content_stops_ = marks_.calls_begin;
      if (options_.reads_calls && StandsAlone()) content_stops_.push_back(marks_.calls_end.front());
      if (options_.reads_reasoning && marks_.reasoning_anywhere) content_stops_.push_back(marks_.reasoning_begin);
    }
    broken_stops_ = marks_.calls_end;
    broken_stops_.insert(broken_stops_.end(), marks_.calls_begin.begin(), marks_.calls_begin.end());
  }
  // True for forms in which an end of a call without its beginning is said to be broken.
  bool StandsAlone() const { return marks_.calls_end.size() == 1 && marks_.calls_end.front() == "</tool_call>"; }

  void ReadOn() {
    while (Step()) {
    }
  }

  // False: more text is needed.
  bool Step() {
    switch (at_) {
      case At::kBegin:
        return is_harmony() ? BeginMessage() : BeginReply();
      case At::kBody:
        return BeginBody();
      case At::kReasoning:
        return ReadReasoning();
      case At::kContent:
        return ReadContent();
      case At::kHeader:
        return ReadHeader();
      case At::kCalls:
        return ReadCalls();
      case At::kBroken:
        return ReadBroken();
      case At::kRest:
        sink_.AddRest(text_.TakeOut(text_.rest().size()));
        break;
    }
    return false;
  }
  bool To(At at) {
    at_ = at;
    return true;
  }

  bool BeginReasoning() {
    sink_.ParagraphOfReasoning();
    return To(At::kReasoning);
  }

  // White space before reasoning is nothing; before other text it is part of it.
  bool BeginReply() {
    const absl::string_view rest = text_.rest(), said = absl::StripLeadingAsciiWhitespace(rest);
    const size_t spaces = rest.size() - said.size();
    if (said.empty() && !text_.ended()) return false;
    if (options_.reads_reasoning && !marks_.reasoning_begin.empty()) {
      const absl::string_view here = said.substr(0, marks_.reasoning_begin.size());
      if (here == marks_.reasoning_begin) {
        text_.TakeOut(spaces + here.size());
        return BeginReasoning();
      }
      if (!text_.ended() && absl::StartsWith(marks_.reasoning_begin, here)) return false;
    }
    return To(At::kBody);
  }
  // A reply of Llama may be calls without any mark.
  bool BeginBody() {
    if (form_ != ReplyForm::kLlama3 || !options_.reads_calls) return To(At::kContent);
    const absl::string_view rest = text_.rest(), said = absl::StripLeadingAsciiWhitespace(rest);
    if (said.empty()) return text_.ended() && To(At::kContent);
    if (said.front() != '{') return To(At::kContent);
    sink_.AddContent(text_.TakeOut(rest.size() - said.size()));
    calls_ = BareCalls(options_);
    return To(At::kCalls);
  }

  bool ReadReasoning() {
    const auto& ends = is_harmony() ? marks_.calls_end : reasoning_ends_;
    const ReplyText::Found found = text_.Find(ends);
    sink_.AddReasoning(text_.TakeOut(found.before));
    if (found.mark < 0) return false;
    text_.TakeOut(ends[static_cast<size_t>(found.mark)].size());
    return To(is_harmony() ? At::kBegin : At::kBody);
  }

  bool ReadContent() {
    const ReplyText::Found found = text_.Find(content_stops_);
    sink_.AddContent(text_.TakeOut(found.before));
    if (found.mark < 0) return false;
    const absl::string_view mark = content_stops_[static_cast<size_t>(found.mark)];
    if (is_harmony()) {
      if (mark == kStart || mark == kChannel) return To(At::kHeader);
      text_.TakeOut(mark.size());
      return To(At::kBegin);
    }
    if (options_.reads_reasoning && marks_.reasoning_anywhere && mark == marks_.reasoning_begin) {
      text_.TakeOut(mark.size());
      return BeginReasoning();
    }
    if (StandsAlone() && mark == marks_.calls_end.front()) {
      sink_.AddContent(text_.TakeOut(mark.size()));
      sink_.AddBroken(mark, absl::StrCat("there is no ", marks_.calls_begin.front(), " before it"));
      return true;
    }
    text_.TakeRead();
    text_.Read(mark.size());
    calls_ = CallsBehind(form_, mark, options_);
    return To(At::kCalls);
  }

  // A message has a header, but where the prompt has it already.
  bool BeginMessage() {
    bool is_part = false;
    for (const absl::string_view begin :
         {kStart, kChannel, kMessage, absl::string_view(" to="), absl::string_view("to=")}) {
      const ReplyText::Match match = text_.At(begin);
      if (match == ReplyText::Match::kWhole) return To(At::kHeader);
      is_part |= match == ReplyText::Match::kPart;
    }
    return !is_part && To(At::kContent);
  }
  bool ReadHeader() {
    const ReplyText::Match read = text_.ReadUntil(kMessage, kMaxHeaderBytes, header_);
    if (read == ReplyText::Match::kPart) return false;
    const Header header = HeaderOf(std::exchange(header_, {}));
    if (read == ReplyText::Match::kNo) return Break("it has no <|message|>");
    if (!header.recipient.empty() && options_.reads_calls) {
      calls_ = MessageToTool(header.recipient, options_);
      return To(At::kCalls);
    }
    text_.TakeRead();
    if (header.channel == "analysis" && options_.reads_reasoning) return BeginReasoning();
    sink_.ParagraphOfContent();
    return To(At::kContent);
  }

  bool ReadCalls() { return After(calls_->Read(text_, sink_)); }
  bool After(CallGrammar::Result read) {
    switch (read) {
      case CallGrammar::Result::kMore:
        return false;
      case CallGrammar::Result::kDone:
        calls_.reset();
        AddSpaces(text_.TakeRead());
        return To(is_harmony() ? At::kBegin : At::kContent);
      case CallGrammar::Result::kNoCall:
        sink_.AddContent(text_.TakeRead());
        calls_.reset();
        return To(At::kContent);
      case CallGrammar::Result::kBroken:
        break;
    }
    const std::string why = calls_->why();
    calls_.reset();
    return Break(why);
  }

  // Adds white space that was read behind calls to see whether more of them follow.
  void AddSpaces(absl::string_view text) {
    if (absl::StripAsciiWhitespace(text).empty()) sink_.AddContent(text);
  }

  // Makes content of what was read of a call, and of the rest of it.
  bool Break(std::string why) {
    sink_.DropCall();
    why_ = std::move(why);
    broken_.clear();
    AddToBroken(text_.TakeRead());
    return To(At::kBroken);
  }
  void AddToBroken(absl::string_view text) {
    sink_.AddContent(text);
    if (broken_.size() < kShownBytes) absl::StrAppend(&broken_, text.substr(0, kShownBytes - broken_.size()));
  }
  bool ReadBroken() {
    const ReplyText::Found found = text_.Find(broken_stops_);
    AddToBroken(text_.TakeOut(found.before));
    if (found.mark < 0) return false;
    const auto mark = static_cast<size_t>(found.mark);
    const bool is_end = mark < marks_.calls_end.size();
    if (is_end) AddToBroken(text_.TakeOut(broken_stops_[mark].size()));
    sink_.AddBroken(broken_, why_);
    return To(is_end && is_harmony() ? At::kBegin : At::kContent);
  }

  // No more is read.
  void EndReading() {
    if (at_ == At::kCalls) After(calls_->End(text_, sink_));
    text_.End();
    ReadOn();
    if (at_ == At::kHeader && !absl::StartsWith(header_, "<|")) sink_.AddContent(header_);  // it was none
    if (at_ == At::kBroken) sink_.AddBroken(broken_, why_);
  }

  const ReplyForm form_;
  const ReplyMarks& marks_;
  const ReplyOptions options_;
  ReplySink sink_;
  ReplyText text_;
  At at_ = At::kBegin;
  size_t bytes_ = 0;
  const std::vector<absl::string_view> reasoning_ends_ = {marks_.reasoning_end};
  std::vector<absl::string_view> content_stops_, broken_stops_;
  std::string header_;
  std::unique_ptr<CallGrammar> calls_;  // of kCalls
  std::string broken_, why_;            // of kBroken
};

ReplyParser::ReplyParser(ReplyForm form, ReplyOptions options)
    : machine_(std::make_unique<Machine>(form, std::move(options))) {}
ReplyParser::~ReplyParser() = default;

void ReplyParser::Push(absl::string_view text) { machine_->Push(text); }
void ReplyParser::Finish() { machine_->Finish(); }
std::vector<ReplyDelta> ReplyParser::TakeDeltas() { return machine_->sink().TakeDeltas(); }
const ParsedReply& ReplyParser::reply() const { return machine_->sink().reply(); }

ParsedReply ParseReply(ReplyForm form, absl::string_view text, ReplyOptions options) {
  ReplyParser parser(form, std::move(options));
  parser.Push(text);
  parser.Finish();
  return parser.reply();
}

std::vector<ReplyDelta> DeltasOf(const ParsedReply& reply) {
  std::vector<ReplyDelta> deltas;
  if (!reply.reasoning.empty()) deltas.push_back({.kind = ReplyDelta::Kind::kReasoning, .text = reply.reasoning});
  if (!reply.content.empty()) deltas.push_back({.kind = ReplyDelta::Kind::kContent, .text = reply.content});
  for (size_t i = 0; i < reply.calls.size(); ++i) {
    const ToolCall& call = reply.calls[i];
    deltas.push_back({.kind = ReplyDelta::Kind::kCall, .call = i, .id = call.id, .text = call.name});
    deltas.push_back({.kind = ReplyDelta::Kind::kArguments, .call = i, .text = call.arguments});
  }
  return deltas;
}

// ---- Replies as turns of conversations.

namespace {

// True if the template renders the reasoning of a turn's field "reasoning_content".
bool TakesReasoning(const ChatTemplate& chat_template) {
  const std::array<Turn, 2> turns = {
      {{.role = Role::kUser, .content = "?"},
       {.role = Role::kAssistant, .content = "!", .fields = R"({"reasoning_content": "."})"}}};
  return chat_template.Prepare(turns, {}, {}).ok();
}

// Puts the reasoning into the content, before the rest of it. `begun`: the mark that begins it is in the prompt.
void MoveReasoningToContent(const ReplyMarks& marks, bool begun, ParsedReply& reply) {
  if (reply.reasoning.empty()) return;
  const std::string begin = begun ? "" : absl::StrCat(marks.reasoning_begin, "\n");
  reply.content =
      absl::StrCat(begin, std::exchange(reply.reasoning, {}), "\n", marks.reasoning_end, "\n\n", reply.content);
}

}  // namespace

Turn TurnOf(const ParsedReply& reply) {
  nlohmann::ordered_json message = {{"role", std::string(RoleName(Role::kAssistant))}};
  const bool is_text = reply.reasoning.empty() && reply.calls.empty();
  if (is_text || !reply.content.empty()) message["content"] = reply.content;
  if (!reply.reasoning.empty()) message["reasoning_content"] = reply.reasoning;
  for (const ToolCall& call : reply.calls) {
    message["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  absl::StatusOr<Turn> turn = ReadTurn(message);
  TDOCK_CHECK(turn.ok(), "a call that was read has a name");
  return *std::move(turn);
}

TurnReading ReadingOf(std::optional<ReplyForm> form, const ChatTemplate* chat_template, const std::string& tools) {
  TurnReading reading;
  if (form) {
    reading.form = *form;
  } else if (chat_template != nullptr) {
    const ReplyForm own = ReplyFormOf(*chat_template);
    if (own != ReplyForm::kPlain) reading.form = own;
  }
  reading.options.reads_reasoning = chat_template != nullptr && HasReasoning(reading.form, *chat_template);
  reading.options.tools = tools;
  reading.keeps_reasoning = reading.options.reads_reasoning && !TakesReasoning(*chat_template);
  return reading;
}

absl::StatusOr<Turn> ReadModelTurn(const TurnReading& reading, absl::string_view said, bool reasoning_open) {
  ReplyOptions options = reading.options;
  options.reasoning_open = reasoning_open;
  ParsedReply reply = ParseReply(reading.form, said, std::move(options));
  const ReplyMarks& marks = MarksOf(reading.form);
  if (!reply.broken.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("The call of a tool cannot be understood: ", reply.broken.front(), ". Write ", marks.example));
  }
  const bool is_all = reply.calls.empty() && (reply.reasoning.empty() || reading.keeps_reasoning);
  if (is_all) return Turn{.role = Role::kAssistant, .content = std::string(said)};
  if (reading.keeps_reasoning) MoveReasoningToContent(marks, reasoning_open, reply);
  return TurnOf(reply);
}

}  // namespace tdock::text
