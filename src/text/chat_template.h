// Conversations, and the templates that render them as the text that a model was made with.
//
//   chatml:  <|im_start|>user⏎How are you?<|im_end|>⏎<|im_start|>assistant⏎Well.<|im_end|>⏎
//
// A template is a Jinja text, as models carry it in `chat_template`, rendered as apply_chat_template of transformers
// does (text/jinja). Of each character of the result it is known whether a turn or the template said it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "text/call_form.h"
#include "text/jinja/template.h"
#include "text/tokenizer.h"

namespace tdock::text {

enum class Role {
  kSystem,
  kUser,
  kAssistant,
  kDeveloper,
  kTool,     // what the call of a tool returned
  kFunction  // the same by its older name
};

// "system", "user", "assistant", "developer", "tool", "function".
absl::string_view RoleName(Role role);

struct Turn {
  Role role = Role::kUser;
  std::string content;  // UTF-8
  // True if the loss counts this turn, where that is not for TrainOn to say.
  std::optional<bool> train = std::nullopt;
  // False: it has none, as a turn that only calls tools.
  bool has_content = true;
  // What else the turn has, as a JSON object: {"tool_calls": […]}, {"reasoning_content": "…"}; empty: nothing.
  std::string fields = {};

  friend bool operator==(const Turn&, const Turn&) = default;
};

// What templates may render beside the turns: each a JSON list, or empty.
struct Context {
  std::string tools = {};      // JSON schemas of functions
  std::string documents = {};  // objects with "title" and "text"

  friend bool operator==(const Context&, const Context&) = default;
};

// How a template spells the tokenizer's own special tokens; a token that there is not is undefined in it.
struct SpecialSpellings {
  std::optional<std::string> bos = {}, eos = {}, pad = {};
};
SpecialSpellings SpellingsOf(const Tokenizer& tokenizer);

// Immutable, and so thread-safe; cheap to copy.
class ChatTemplate {
 public:
  // Names() in messages and documentation: chatml, human_assistant, llama3, llama3.1, mistral, mistral_v3, qwen.
  static std::vector<std::string> Names();

  // NotFound, with the names, for another one.
  static absl::StatusOr<ChatTemplate> Named(absl::string_view name);

  // The errors of jinja::Template::Parse().
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view jinja);

  // That of the model in `folder`: chat_template.jinja, or else "chat_template" of tokenizer_config.json. Of several,
  // as with transformers, it is the one named "default", and where tools are given "tool_use" if there is one. NotFound
  // where the model has none. No file may exceed 4 MiB.
  static absl::StatusOr<ChatTemplate> OfModel(Env& env, const std::string& folder);

  // This one with more variables, or other values of those that it has: a JSON object such as
  // {"enable_thinking": false}. InvalidArgument for a name that it does not have a use for, and for those that a
  // conversation sets.
  absl::StatusOr<ChatTemplate> WithVariables(absl::string_view json) const;
  // This one showing another time than 1970-01-01 00:00 UTC, in templates that show the day (see shows_time()).
  ChatTemplate WithTime(absl::Time now, absl::TimeZone zone) const;

  absl::string_view name() const { return name_; }  // "the model's own", "chatml"
  // For messages: "the model's chat_template", "the template "chatml"".
  std::string title() const;
  bool is_named() const { return !is_own_; }
  bool shows_time() const;
  // True if it marks what the loss counts itself, by {% generation %}, in conversations with this context.
  bool marks_replies(const Context& context = {}) const;
  // Everything that shapes what is rendered, for a cache key.
  std::string Description() const;

  struct Rendered {
    std::string text;
    std::vector<TextRange> content;         // what turns, tools and documents say, in order, apart from one another
    std::vector<jinja::Run> turns;          // which turn each part belongs to, by what it says or else by the loop over
                                            // the turns that put it out; -1: to none
    std::vector<TextRange> generations;     // of {% generation %}
    std::vector<jinja::Run> content_turns;  // which turn says each part; -1: none of them
  };

  // The whole of Prepare()d turns, with the errors of both.
  absl::StatusOr<Rendered> Render(std::span<const Turn> turns, const Context& context, bool generation_prompt,
                                  const SpecialSpellings& specials) const;

  // Turns made ready to be rendered, all of them or the first ones, any number of times.
  class Prepared;
  // InvalidArgument for a turn that is not UTF-8, and for something of a turn or of the context that the template would
  // leave out: fields that it does not mention, such as "tool_calls", keys of calls that it neither mentions nor writes
  // with all others, and arguments that are no object where it only writes objects as they are. Exempt are the name
  // and the tool_call_id of a tool's turn, and the id, type and index of a call. `stop` is polled now, and while the
  // result is rendered; its error is returned as it is.
  //
  // The template gets the arguments of calls as objects or as JSON text, whichever it writes without quoting them, and
  // in a turn that only calls tools, a content that is none, empty or missing, whichever it expects.
  absl::StatusOr<Prepared> Prepare(std::span<const Turn> turns, const Context& context,
                                   const SpecialSpellings& specials, StopCheck stop = {}) const;

  // Special tokens that a tokenizer must have: those of a named template; a model's own goes with its own tokenizer.
  std::span<const absl::string_view> needed_tokens() const { return needed_tokens_; }
  // True if it reads the variable of this name: "bos_token".
  bool Uses(absl::string_view variable) const;
  // True if its text has `part` in it: "<tool_call>".
  bool Spells(absl::string_view part) const;

 private:
  struct Source {
    std::string text;
    jinja::Template program;
    absl::flat_hash_set<std::string> words;  // of letters, digits and underscores
    CallForm calls = {};
    bool reads_rare_reasoning = false;

    // True if `name` stands in the text, not as a part of a longer word.
    bool Mentions(absl::string_view name) const;
    // True if it reads a turn's thinking by one of its names.
    bool ReadsReasoning() const;
  };
  static absl::StatusOr<std::shared_ptr<const Source>> Compile(absl::string_view jinja);

  const std::shared_ptr<const Source>& SourceFor(const Context& context) const;
  absl::Status CheckPlaces(const Source& source, const Context& context) const;

  std::string name_;
  bool is_own_ = true;  // a model's
  std::span<const absl::string_view> needed_tokens_;
  std::shared_ptr<const Source> source_, tool_use_;  // tool_use_ may be null
  std::string variables_json_;
  jinja::Template::Inputs variables_;
  jinja::RenderOptions time_;
};

// Immutable, and so thread-safe; does not need its template, turns and context any more.
class ChatTemplate::Prepared {
 public:
  // The first `turns` of the turns, at least one. `generation_prompt` adds what asks the assistant for the next reply.
  // InvalidArgument for what the template refuses; ResourceExhausted for what exceeds a limit of jinja/, or where it
  // makes more than 16 times the bytes of turns, context, variables and its own text, at 256 more for each turn, and
  // 1 MiB.
  absl::StatusOr<Rendered> Render(size_t turns, bool generation_prompt) const;

  size_t size() const { return messages_.size(); }  // how many turns there are
  const std::string& title() const { return title_; }
  // The names of the turn's fields, in their order.
  const std::string& field_names(size_t turn) const { return fields_[turn].names; }
  // The names of each of the turn's calls, see NamesOfCalls().
  const std::vector<std::vector<std::string>>& names_of_calls(size_t turn) const {
    return fields_[turn].names_of_calls;
  }
  // How the turn's thinking begins, where it has some in a field: up to 64 bytes, without white space before it.
  const std::string& thinking(size_t turn) const { return fields_[turn].thinking; }

 private:
  friend class ChatTemplate;
  struct Fields {
    std::string names;
    std::string thinking;
    std::vector<std::vector<std::string>> names_of_calls;
  };
  Prepared() = default;
  // `fields`: those of the turn.
  absl::Status Add(const Turn& turn, nlohmann::ordered_json fields);

  std::shared_ptr<const Source> source_;
  std::string title_;
  bool is_own_ = false;
  jinja::Template::Inputs inputs_;          // but the messages
  std::vector<absl::string_view> missing_;  // special tokens that the tokenizer lacks
  jinja::Value::Items messages_;
  std::vector<Fields> fields_;
  jinja::RenderOptions options_;
};

}  // namespace tdock::text
