#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/call_form.h"
#include "text/content_hash.h"
#include "text/named_templates.h"
#include "text/turn_json.h"

namespace tdock::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;
constexpr int kMaxJsonDepth = 32;
// How much a template may make of what it gets, where the limits of jinja/ allow for more.
constexpr size_t kMaxOutputFactor = 16, kBytesOfTurn = 256, kMoreOutputBytes = size_t{1} << 20;

// The origin of what no turn says: tools, documents, variables.
constexpr jinja::Origin kOfContext = std::numeric_limits<jinja::Origin>::max();

constexpr std::array<absl::string_view, 7> kOfConversations = {
    "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token"};

std::string HowToChoose() {
  return absl::StrCat("name a template in data.template or --template: ", absl::StrJoin(ChatTemplate::Names(), ", "));
}

bool IsInWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Whether `word` stands in `text`, not as a part of a longer one.
bool Stands(absl::string_view word, absl::string_view text) {
  for (size_t at = text.find(word); at != absl::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !IsInWord(text[at - 1])) && (end == text.size() || !IsInWord(text[end]))) return true;
  }
  return false;
}

// True if `word` stands in `text` as a name that is read: message.word, message['word'] or message.get("word").
bool IsField(absl::string_view word, absl::string_view text) {
  for (size_t at = text.find(word); at != absl::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool is_named = at > 0 && absl::StrContains(".'\"", text[at - 1]);
    if (is_named && (end == text.size() || !IsInWord(text[end]))) return true;
  }
  return false;
}

absl::flat_hash_set<std::string> WordsOf(absl::string_view text) {
  absl::flat_hash_set<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && IsInWord(text[end])) ++end;
    if (end > begin) words.emplace(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Polls a stop check, and remembers its error.
class StopWatch {
 public:
  explicit StopWatch(const StopCheck& stop) : stop_(stop) {}
  // False once there is an error.
  bool Poll() {
    if (stop_ && status_.ok()) status_ = stop_();
    return status_.ok();
  }
  const absl::Status& status() const { return status_; }

 private:
  const StopCheck& stop_;
  absl::Status status_;
};

// The names under which a turn's thinking is known; the first is the one that most templates read.
constexpr std::array<absl::string_view, 3> kReasoning = {"reasoning_content", "thinking", "reasoning"};
constexpr char kRareReasoning[] = "reasoning";  // is also a word that templates say

bool IsReasoning(absl::string_view name) {
  return std::find(kReasoning.begin(), kReasoning.end(), name) != kReasoning.end();
}

std::optional<OrderedJson> ReasoningIn(const OrderedJson& fields) {
  for (const absl::string_view name : kReasoning) {
    const auto found = fields.find(name);
    if (found != fields.end() && !found->is_null()) return *found;
  }
  return std::nullopt;
}

absl::StatusOr<OrderedJson> FieldsOf(const Turn& turn, StopWatch& stop) {
  if (turn.fields.empty()) return OrderedJson::object();
  return ParseBoundedJson(turn.fields, OrderedJson::value_t::object, "an object", [&stop] { return stop.Poll(); });
}

// The content of a turn, where it has one. Turns that only call tools have the one that the template takes.
std::optional<jinja::Value> ContentOf(const Turn& turn, const OrderedJson& fields, CallForm::NoContent no_content,
                                      jinja::Origin origin) {
  const bool only_calls = turn.content.empty() && fields.contains("tool_calls") && !IsNothing(fields["tool_calls"]);
  if (!only_calls) no_content = CallForm::NoContent::kAsGiven;
  if (no_content == CallForm::NoContent::kNone) return jinja::Value::None();
  const bool has_content =
      no_content == CallForm::NoContent::kAsGiven ? turn.has_content : no_content == CallForm::NoContent::kEmpty;
  if (!has_content) return std::nullopt;
  return jinja::Value::String(turn.content, origin);
}

// `fields`: those of the turn, with calls in the form `calls`. Templates find the reasoning by any name that they read:
// by the first two as with transformers, by the rare one if `reads_rare_name`.
absl::StatusOr<jinja::Value> MessageOf(const Turn& turn, OrderedJson fields, const CallForm& calls,
                                       bool reads_rare_name, jinja::Origin origin) {
  jinja::Value::Pairs pairs;
  if (const std::optional<OrderedJson> reasoning = ReasoningIn(fields)) {
    if (!fields.contains("thinking")) {
      TDOCK_ASSIGN_OR_RETURN(pairs.emplace_back(jinja::Value::String("thinking"), jinja::Value()).second,
                             jinja::FromJson(*reasoning, origin));
    }
    fields["reasoning_content"] = *reasoning;
    if (reads_rare_name) fields[kRareReasoning] = *reasoning;
  }
  // Roles are known words, which the template may make special tokens of.
  pairs.emplace_back(jinja::Value::String("role"), jinja::Value::String(RoleName(turn.role)));
  if (std::optional<jinja::Value> content = ContentOf(turn, fields, calls.no_content, origin)) {
    pairs.emplace_back(jinja::Value::String("content"), *std::move(content));
  }
  for (const auto& [name, field] : fields.items()) {
    if (field.is_null()) continue;  // as in transformers: many templates would say "None"
    TDOCK_ASSIGN_OR_RETURN(jinja::Value value, jinja::FromJson(field, origin));
    pairs.emplace_back(jinja::Value::String(name, origin), std::move(value));
  }
  return jinja::Value::Dict(std::move(pairs), origin);
}

absl::StatusOr<jinja::Value> ListOf(const std::string& json, absl::string_view what, StopWatch& stop) {
  if (json.empty()) return jinja::Value::None();
  absl::StatusOr<OrderedJson> list =
      ParseBoundedJson(json, OrderedJson::value_t::array, "a list", [&stop] { return stop.Poll(); });
  TDOCK_RETURN_IF_ERROR(stop.status());
  if (!list.ok()) return Annotate(list.status(), what);
  absl::StatusOr<jinja::Value> value = jinja::FromJson(*list, kOfContext);
  if (!value.ok()) return Annotate(value.status(), what);
  return value;
}

bool IsGiven(absl::string_view json) {
  return !absl::StripAsciiWhitespace(json).empty() && absl::StripAsciiWhitespace(json) != "[]";
}

// Appends a run, one with the value of the run before by lengthening that.
void AddRun(std::vector<jinja::Run>& runs, size_t end, int32_t value) {
  if (!runs.empty() && runs.back().value == value) {
    runs.back().end = end;
  } else if (runs.empty() ? end > 0 : end > runs.back().end) {
    runs.push_back({end, value});
  }
}

ChatTemplate::Rendered Understood(jinja::Rendered rendered) {
  ChatTemplate::Rendered result;
  size_t mark = 0, begin = 0;
  for (const jinja::Run& run : rendered.origins) {
    const bool content = run.value != jinja::kOfTemplate;
    const bool of_turn = content && run.value != kOfContext;
    if (content) {
      if (!result.content.empty() && result.content.back().end == begin) {
        result.content.back().end = run.end;
      } else {
        result.content.push_back({begin, run.end});
      }
    }
    AddRun(result.content_turns, run.end, of_turn ? run.value : -1);
    while (begin < run.end) {
      while (rendered.marks[mark].end <= begin) ++mark;
      const size_t end = std::min(run.end, rendered.marks[mark].end);
      AddRun(result.turns, end, of_turn ? run.value : rendered.marks[mark].value);
      begin = end;
    }
  }
  for (const jinja::Range& range : rendered.generations) result.generations.push_back({range.begin, range.end});
  result.text = std::move(rendered.text);
  return result;
}

// The texts under "chat_template" in tokenizer_config.json.
struct Texts {
  std::string standard;
  std::optional<std::string> tool_use = {};
};

absl::StatusOr<Texts> TextsInConfig(absl::string_view config, const std::string& path) {
  absl::StatusOr<nlohmann::json> parsed = ParseJsonObject(config, kMaxJsonDepth);
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  const auto found = parsed->find("chat_template");
  if (found == parsed->end() || found->is_null()) {
    return absl::NotFoundError(absl::StrCat(path, ": the model has no chat_template; ", HowToChoose()));
  }
  if (found->is_string()) return Texts{.standard = found->get<std::string>()};
  std::optional<std::string> standard, tool_use;
  if (found->is_array()) {
    for (const nlohmann::json& named : *found) {
      if (!named.is_object() || !named.contains("template") || !named["template"].is_string()) continue;
      const nlohmann::json name = named.value("name", nlohmann::json());
      if (name == "default") standard = named["template"].get<std::string>();
      if (name == "tool_use") tool_use = named["template"].get<std::string>();
    }
  }
  if (standard) return Texts{.standard = *std::move(standard), .tool_use = std::move(tool_use)};
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": \"chat_template\" is neither text nor a list with a text named \"default\""));
}

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kDeveloper:
      return "developer";
    case Role::kTool:
      return "tool";
    case Role::kFunction:
      return "function";
  }
  return "";
}

SpecialSpellings SpellingsOf(const Tokenizer& tokenizer) {
  const auto spelling = [&](std::optional<int32_t> id) { return id ? tokenizer.IdToToken(*id) : std::nullopt; };
  return {
      .bos = spelling(tokenizer.bos_id()), .eos = spelling(tokenizer.eos_id()), .pad = spelling(tokenizer.pad_id())};
}

std::vector<std::string> ChatTemplate::Names() {
  std::vector<std::string> names;
  for (const NamedTemplate& named : NamedTemplates()) names.emplace_back(named.name);
  return names;
}

absl::StatusOr<std::shared_ptr<const ChatTemplate::Source>> ChatTemplate::Compile(absl::string_view jinja) {
  TDOCK_ASSIGN_OR_RETURN(jinja::Template program, jinja::Template::Parse(jinja));
  Source source{std::string(jinja), std::move(program), WordsOf(jinja)};
  if (source.Mentions("tool_calls")) source.calls = FindCallForm(source.program);
  source.reads_rare_reasoning = IsField(kRareReasoning, source.text);
  return std::make_shared<const Source>(std::move(source));
}

absl::StatusOr<ChatTemplate> ChatTemplate::Named(absl::string_view name) {
  for (const NamedTemplate& named : NamedTemplates()) {
    if (named.name != name) continue;
    TDOCK_ASSIGN_OR_RETURN(ChatTemplate made,
                           Parse(absl::StrCat("{%- set name = '", name, "' -%}", named.prelude, named.jinja)));
    made.name_ = std::string(name);
    made.is_own_ = false;
    made.needed_tokens_ = named.tokens;
    return made;
  }
  return absl::NotFoundError(absl::StrCat("there is no conversation template \"", EscapeForMessage(name),
                                          "\"; there are ", absl::StrJoin(Names(), ", ")));
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view jinja) {
  ChatTemplate made;
  TDOCK_ASSIGN_OR_RETURN(made.source_, Compile(jinja));
  made.name_ = "the model's own";
  return made;
}

absl::StatusOr<ChatTemplate> ChatTemplate::OfModel(Env& env, const std::string& folder) {
  std::string path = JoinPath(folder, "chat_template.jinja"), tool_use_path;
  Texts texts;
  if (env.Exists(path)) {
    TDOCK_ASSIGN_OR_RETURN(texts.standard, ReadFileUpTo(env, path, kMaxTemplateBytes));
    tool_use_path = JoinPath(folder, "additional_chat_templates/tool_use.jinja");
    if (env.Exists(tool_use_path)) {
      TDOCK_ASSIGN_OR_RETURN(texts.tool_use, ReadFileUpTo(env, tool_use_path, kMaxTemplateBytes));
    }
  } else {
    path = JoinPath(folder, "tokenizer_config.json");
    TDOCK_ASSIGN_OR_RETURN(const std::string config, ReadFileUpTo(env, path, kMaxTemplateBytes));
    TDOCK_ASSIGN_OR_RETURN(texts, TextsInConfig(config, path));
    tool_use_path = path;
  }
  absl::StatusOr<ChatTemplate> made = Parse(texts.standard);
  if (!made.ok()) return Annotate(made.status(), absl::StrCat(path, ": the model's chat_template"));
  if (texts.tool_use) {
    absl::StatusOr<std::shared_ptr<const Source>> tool_use = Compile(*texts.tool_use);
    if (!tool_use.ok()) {
      return Annotate(tool_use.status(), absl::StrCat(tool_use_path, ": the model's chat_template \"tool_use\""));
    }
    made->tool_use_ = *std::move(tool_use);
  }
  return made;
}

absl::StatusOr<ChatTemplate> ChatTemplate::WithVariables(absl::string_view json) const {
  TDOCK_ASSIGN_OR_RETURN(const OrderedJson variables,
                         ParseBoundedJson(json, OrderedJson::value_t::object, "an object"));
  ChatTemplate made = *this;
  OrderedJson all = variables_json_.empty() ? OrderedJson::object() : ReadOrderedJson(variables_json_);
  all.update(variables);
  made.variables_json_ = all.empty() ? "" : JsonText(all);
  for (const auto& [name, variable] : variables.items()) {
    if (std::find(kOfConversations.begin(), kOfConversations.end(), name) != kOfConversations.end()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", EscapeForMessage(name), "\" is set by each conversation"));
    }
    if (!Uses(name)) {
      return absl::InvalidArgumentError(absl::StrCat(title(), " has no variable \"", EscapeForMessage(name), "\""));
    }
    absl::StatusOr<jinja::Value> value = jinja::FromJson(variable, kOfContext);
    if (!value.ok()) return Annotate(value.status(), absl::StrCat("\"", EscapeForMessage(name), "\""));
    std::erase_if(made.variables_, [&](const auto& variable_before) { return variable_before.first == name; });
    made.variables_.emplace_back(name, *std::move(value));
  }
  return made;
}

ChatTemplate ChatTemplate::WithTime(absl::Time now, absl::TimeZone zone) const {
  ChatTemplate made = *this;
  made.time_ = {.now = now, .time_zone = zone};
  return made;
}

std::string ChatTemplate::title() const {
  return is_own_ ? "the model's chat_template" : absl::StrCat("the template \"", name_, "\"");
}

bool ChatTemplate::Uses(absl::string_view variable) const {
  return source_->program.uses(variable) || (tool_use_ != nullptr && tool_use_->program.uses(variable));
}

bool ChatTemplate::Spells(absl::string_view part) const {
  return absl::StrContains(source_->text, part) || (tool_use_ != nullptr && absl::StrContains(tool_use_->text, part));
}

bool ChatTemplate::shows_time() const { return Uses("strftime_now"); }

bool ChatTemplate::marks_replies(const Context& context) const {
  return SourceFor(context)->program.marks_generation();
}

std::string ChatTemplate::Description() const {
  std::string description =
      absl::StrCat(name_, "|", Hex(HashOf(source_->text)), "|",
                   tool_use_ == nullptr ? "" : Hex(HashOf(tool_use_->text)), "|", variables_json_);
  if (shows_time()) absl::StrAppend(&description, "|", absl::FormatTime("%Y-%m-%d %H:%M", time_.now, time_.time_zone));
  return description;
}

const std::shared_ptr<const ChatTemplate::Source>& ChatTemplate::SourceFor(const Context& context) const {
  return IsGiven(context.tools) && tool_use_ != nullptr ? tool_use_ : source_;
}

bool ChatTemplate::Source::Mentions(absl::string_view name) const {
  const bool is_word = !name.empty() && std::all_of(name.begin(), name.end(), IsInWord);
  return is_word ? words.contains(name) : Stands(name, text);
}

bool ChatTemplate::Source::ReadsReasoning() const {
  return Mentions("reasoning_content") || Mentions("thinking") || reads_rare_reasoning;
}

absl::Status ChatTemplate::CheckPlaces(const Source& source, const Context& context) const {
  const auto left_out = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(title(), " has no place for ", what, ", and would leave out those of the conversation"));
  };
  if (IsGiven(context.tools) && !source.Mentions("tools")) return left_out("tools");
  if (IsGiven(context.documents) && !source.Mentions("documents")) return left_out("documents");
  return absl::OkStatus();
}

absl::StatusOr<ChatTemplate::Prepared> ChatTemplate::Prepare(std::span<const Turn> turns, const Context& context,
                                                             const SpecialSpellings& specials, StopCheck stop) const {
  if (turns.empty()) return absl::InvalidArgumentError("the conversation has no turns");
  Prepared made;
  made.source_ = SourceFor(context);
  made.title_ = title();
  made.is_own_ = is_own_;
  made.inputs_ = variables_;
  TDOCK_RETURN_IF_ERROR(CheckPlaces(*made.source_, context));
  StopWatch watch(stop);
  TDOCK_ASSIGN_OR_RETURN(made.inputs_.emplace_back("tools", jinja::Value()).second,
                         ListOf(context.tools, "the tools", watch));
  TDOCK_ASSIGN_OR_RETURN(made.inputs_.emplace_back("documents", jinja::Value()).second,
                         ListOf(context.documents, "the documents", watch));
  const auto special_tokens = {
      std::pair("bos_token", &specials.bos), {"eos_token", &specials.eos}, {"pad_token", &specials.pad}};
  for (const auto& [name, spelling] : special_tokens) {
    if (*spelling) {
      made.inputs_.emplace_back(name, jinja::Value::String(**spelling));
    } else {
      made.missing_.emplace_back(name);
    }
  }
  size_t bytes = context.tools.size() + context.documents.size() + variables_json_.size() + made.source_->text.size();
  for (size_t i = 0; i < turns.size(); ++i) {
    absl::StatusOr<OrderedJson> fields = FieldsOf(turns[i], watch);
    if (!watch.Poll()) return watch.status();
    const absl::Status added = fields.ok() ? made.Add(turns[i], *std::move(fields)) : fields.status();
    if (!added.ok()) return Annotate(added, absl::StrCat("turn ", i + 1, " of the conversation"));
    bytes += kBytesOfTurn + turns[i].content.size() + turns[i].fields.size();
  }
  made.options_ = time_;
  made.options_.output_bytes = kMaxOutputFactor * bytes + kMoreOutputBytes;
  made.options_.stop = std::move(stop);
  return made;
}

absl::Status ChatTemplate::Prepared::Add(const Turn& turn, OrderedJson fields) {
  if (const auto bad = FindInvalidUtf8(turn.content)) {
    return absl::InvalidArgumentError(absl::StrCat("not valid UTF-8 at byte ", *bad));
  }
  Fields of_turn;
  const bool of_tool = turn.role == Role::kTool || turn.role == Role::kFunction;
  for (const auto& [name, field] : fields.items()) {
    absl::StrAppend(&of_turn.names, name, "\n");
    // Which tool a result is of, or which call, is not what the result says.
    if (IsNothing(field) || (of_tool && (name == "name" || name == "tool_call_id"))) continue;
    if (IsReasoning(name) ? source_->ReadsReasoning() : source_->Mentions(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat("it has \"", EscapeForMessage(name), "\", which ", title_,
                                                   " does not mention, and would leave out"));
  }
  if (const std::optional<OrderedJson> reasoning = ReasoningIn(fields); reasoning && reasoning->is_string()) {
    constexpr size_t kBytesOfThinking = 64;
    const absl::string_view thinking = absl::StripAsciiWhitespace(reasoning->get_ref<const std::string&>());
    of_turn.thinking = std::string(thinking.substr(0, kBytesOfThinking));
  }
  if (const auto calls = fields.find("tool_calls"); calls != fields.end()) {
    of_turn.names_of_calls = NamesOfCalls(*calls);
    TDOCK_RETURN_IF_ERROR(ShapeCalls(
        source_->calls, title_, [&](absl::string_view name) { return source_->Mentions(name); }, *calls));
  }
  fields_.push_back(std::move(of_turn));
  TDOCK_ASSIGN_OR_RETURN(jinja::Value message,
                         MessageOf(turn, std::move(fields), source_->calls, source_->reads_rare_reasoning,
                                   static_cast<jinja::Origin>(messages_.size())));
  messages_.push_back(std::move(message));
  return absl::OkStatus();
}

absl::StatusOr<ChatTemplate::Rendered> ChatTemplate::Prepared::Render(size_t turns, bool generation_prompt) const {
  jinja::Template::Inputs inputs = inputs_;
  const auto end = messages_.begin() + static_cast<std::ptrdiff_t>(turns);
  inputs.emplace_back("messages", jinja::Value::List({messages_.begin(), end}));
  inputs.emplace_back("add_generation_prompt", jinja::Value::Bool(generation_prompt));
  StopWatch watch(options_.stop);
  jinja::RenderOptions options = options_;
  if (options_.stop) options.stop = [&watch] { return watch.Poll() ? absl::OkStatus() : watch.status(); };
  absl::StatusOr<jinja::Rendered> rendered = source_->program.Render(inputs, options);
  if (rendered.ok()) return Understood(*std::move(rendered));
  TDOCK_RETURN_IF_ERROR(watch.status());
  for (const absl::string_view name : missing_) {
    if (!absl::StrContains(rendered.status().message(), absl::StrCat("'", name, "' is undefined"))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(title_, " writes the tokenizer's ", name, ", and the tokenizer has none (", name,
                     " in tokenizer_config.json); choose the template that the model was made with"));
  }
  // The errors of named ones speak for themselves.
  return is_own_ ? Annotate(rendered.status(), title_) : rendered.status();
}

absl::StatusOr<ChatTemplate::Rendered> ChatTemplate::Render(std::span<const Turn> turns, const Context& context,
                                                            bool generation_prompt,
                                                            const SpecialSpellings& specials) const {
  TDOCK_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(turns, context, specials));
  return prepared.Render(turns.size(), generation_prompt);
}

}  // namespace tdock::text
