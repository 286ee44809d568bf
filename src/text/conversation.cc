#include "text/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/template_form.h"

namespace tdock::text {
namespace {

using Piece = ChatTemplate::Piece;

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;
constexpr int kMaxJsonDepth = 32;

// What Python's str.strip() takes off, which Jinja's `trim` calls.
bool IsBlank(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

// `text` is UTF-8.
absl::string_view Stripped(absl::string_view text) {
  while (!text.empty()) {
    const auto first = FirstUtf8Char(text);
    if (!first || !IsBlank(first->code)) break;
    text.remove_prefix(first->bytes);
  }
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    const auto last = FirstUtf8Char(text.substr(begin));
    if (!last || !IsBlank(last->code)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

absl::Status BadTurn(const TemplateForm& form, size_t turn, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("turn ", turn + 1, " of the conversation: ", what,
                                                 ", which the template \"", form.name, "\" cannot express"));
}

bool IsOfTool(const Turn& turn) { return turn.role == Role::kTool || turn.role == Role::kFunction; }

bool IsOfSystem(const TemplateForm& form, const Turn& turn) {
  return turn.role == Role::kSystem || (turn.role == Role::kDeveloper && !form.names_developer);
}

// Turns that are not spoken in order, and what no template says.
absl::Status CheckTurns(const TemplateForm& form, std::span<const Turn> turns, bool generation_prompt) {
  if (turns.empty()) return absl::InvalidArgumentError("the conversation has no turns");
  const bool begins_with_system = IsOfSystem(form, turns[0]);
  if (begins_with_system && form.system == SystemPlace::kNowhere) {
    return BadTurn(form, 0, absl::StrCat("it is of the ", RoleName(turns[0].role)));
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    if (const auto bad = FindInvalidUtf8(turns[i].content)) {
      return absl::InvalidArgumentError(
          absl::StrCat("turn ", i + 1, " of the conversation: not valid UTF-8 at byte ", *bad));
    }
    if (IsOfTool(turns[i]) && form.tools == ToolPlace::kNowhere) {
      return BadTurn(form, i, absl::StrCat("it is of a ", RoleName(turns[i].role)));
    }
    if (!form.must_alternate || (i == 0 && begins_with_system)) continue;
    const bool user_is_due = (i - (begins_with_system ? 1 : 0)) % 2 == 0;
    if (turns[i].role != (user_is_due ? Role::kUser : Role::kAssistant)) {
      return BadTurn(form, i,
                     absl::StrCat("it is of the ", RoleName(turns[i].role), " where the ",
                                  user_is_due ? "user" : "assistant", "'s is due"));
    }
  }
  const bool ends_with_user = turns.back().role == Role::kUser;
  if (begins_with_system && turns.size() == 1 && form.system != SystemPlace::kOwnTurn) {
    return BadTurn(form, 0, "a system turn without a user's");
  }
  if (begins_with_system && form.system == SystemPlace::kLastUser && !ends_with_user) {
    return BadTurn(form, 0, "a system turn in a conversation that does not end with the user's");
  }
  if (generation_prompt && form.user_asks && !ends_with_user) {
    return BadTurn(form, turns.size() - 1, "a prompt for a reply after a turn that is not the user's");
  }
  return absl::OkStatus();
}

// Collects the pieces of one conversation.
class Renderer {
 public:
  explicit Renderer(const TemplateForm& form) : form_(form) {}

  void Add(Piece::Kind kind, absl::string_view text, int turn, bool reply) {
    if (kind == Piece::Kind::kText && text.empty()) return;
    pieces_.push_back({.kind = kind, .text = std::string(text), .turn = turn, .reply = reply});
  }

  void AddFrame(std::span<const FramePart> parts, int turn, bool reply = false) {
    for (const FramePart& part : parts) Add(part.kind, part.text, turn, reply);
  }

  // What comes before a turn's content.
  void Open(Role role, int turn) {
    const TemplateForm::Frame& frame = role == Role::kAssistant ? form_.assistant : form_.user;
    AddFrame(frame.open, turn);
    if (frame.role_after_open) Add(Piece::Kind::kText, RoleName(role), turn, false);
    AddFrame(frame.header_end, turn);
  }

  void AddTurn(Role role, absl::string_view content, int turn, absl::string_view prefix = {}) {
    const bool reply = role == Role::kAssistant;
    const TemplateForm::Frame& frame = reply ? form_.assistant : form_.user;
    Open(role, turn);
    if (reply) Add(Piece::Kind::kText, form_.reply_begins, turn, true);
    Add(Piece::Kind::kText, prefix, turn, false);
    Add(Piece::Kind::kText, (reply ? form_.strips_replies : form_.strips_prompts) ? Stripped(content) : content, turn,
        reply);
    AddFrame(frame.close, turn, reply);
    AddFrame(frame.after, turn);
  }

  // A turn of a tool or a function; `first` and `last` of those that follow one another.
  void AddToolTurn(const Turn& said, int turn, bool first, bool last) {
    switch (form_.tools) {
      case ToolPlace::kNowhere:
        break;  // CheckTurns() refuses it
      case ToolPlace::kOwnTurn:
        AddTurn(said.role, said.content, turn);
        break;
      case ToolPlace::kIpython:
        AddFrame(form_.user.open, turn);
        Add(Piece::Kind::kText, "ipython", turn, false);
        AddFrame(form_.user.header_end, turn);
        Add(Piece::Kind::kText, nlohmann::json(said.content).dump(), turn, false);
        Close(turn);
        break;
      case ToolPlace::kUserTurn:
        if (first) Open(Role::kUser, turn);
        Add(Piece::Kind::kText,
            absl::StrCat(first ? "" : "\n", "<tool_response>\n", said.content, "\n</tool_response>"), turn, false);
        if (last) Close(turn);
        break;
    }
  }

  std::vector<Piece> Take() { return std::move(pieces_); }

 private:
  // What ends a turn that is no reply.
  void Close(int turn) {
    AddFrame(form_.user.close, turn);
    AddFrame(form_.user.after, turn);
  }

  const TemplateForm& form_;
  std::vector<Piece> pieces_;
};

std::string HowToChoose() {
  return absl::StrCat("choose a template by name: ", absl::StrJoin(ChatTemplate::Names(), ", "));
}

// The text of "chat_template" in tokenizer_config.json.
absl::StatusOr<std::string> TemplateInConfig(absl::string_view config, const std::string& path) {
  absl::StatusOr<nlohmann::json> parsed = ParseJsonObject(config, kMaxJsonDepth);
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  const auto found = parsed->find("chat_template");
  if (found == parsed->end() || found->is_null()) {
    return absl::NotFoundError(absl::StrCat(path, ": the model has no chat_template; ", HowToChoose()));
  }
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const nlohmann::json& named : *found) {
      if (named.is_object() && named.value("name", nlohmann::json()) == "default" && named.contains("template") &&
          named["template"].is_string()) {
        return named["template"].get<std::string>();
      }
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": \"chat_template\" is neither text nor a list with a text named \"default\""));
}

absl::StatusOr<int32_t> IdOf(const Piece& piece, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  std::optional<int32_t> id;
  absl::string_view what = piece.text;
  if (piece.kind == Piece::Kind::kBos) {
    id = tokenizer.bos_id();
    what = "that begins a text";
  } else if (piece.kind == Piece::Kind::kEos) {
    id = tokenizer.eos_id();
    what = "that ends a text";
  } else {
    id = tokenizer.TokenToId(piece.text);
  }
  if (!id) {
    return absl::InvalidArgumentError(absl::StrCat("the template \"", chat_template.name(), "\" needs the token ", what,
                                                   ", which the tokenizer does not have; choose the template that the "
                                                   "model was made with, or a tokenizer that has its tokens"));
  }
  return *id;
}

// The tokens of a text after a special token, which some tokenizers begin otherwise than a text of its own. What `text`
// spells is text.
absl::StatusOr<std::vector<int32_t>> EncodeText(const Tokenizer& tokenizer, absl::string_view special,
                                                absl::string_view text) {
  if (!special.empty() && !text.empty()) {
    absl::StatusOr<std::vector<int32_t>> both =
        tokenizer.Encode(absl::StrCat(special, text), {.spelled = SpelledSpecial::kParse});
    // Unless the text spells one too.
    const auto is_special = [&](int32_t id) { return tokenizer.IsSpecial(id); };
    if (both.ok() && !both->empty() && std::count_if(both->begin(), both->end(), is_special) == 1 &&
        tokenizer.IdToToken(both->front()) == special) {
      both->erase(both->begin());
      return both;
    }
  }
  return tokenizer.Encode(text, {.spelled = SpelledSpecial::kAsText});
}

// Whether `ids` say something else after `prompt_ids` than by themselves, as where a text is begun with a space that
// decoding only drops from the first token.
bool SaysOtherwiseAfter(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids, std::span<const int32_t> ids) {
  std::vector<int32_t> both(prompt_ids.begin(), prompt_ids.end());
  both.insert(both.end(), ids.begin(), ids.end());
  const auto joined = tokenizer.Decode(both, SpecialTokens::kKeep);
  const auto before = tokenizer.Decode(prompt_ids, SpecialTokens::kKeep);
  const auto after = tokenizer.Decode(ids, SpecialTokens::kKeep);
  return !joined.ok() || !before.ok() || !after.ok() || *joined != *before + *after;
}

// The tokens of `reply` where none may reach back into the prompt.
absl::StatusOr<std::vector<int32_t>> EncodeBehindBorder(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids,
                                                        absl::string_view reply) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<int32_t> alone, EncodeText(tokenizer, "", reply));
  if (!SaysOtherwiseAfter(tokenizer, prompt_ids, alone)) return alone;
  // Then a character stands for the prompt, one that no token joins to the reply.
  for (const absl::string_view border : {"\n", ".", "1", "a"}) {
    const auto both = tokenizer.EncodeWithRanges(absl::StrCat(border, reply), {.spelled = SpelledSpecial::kAsText});
    if (!both.ok()) continue;
    const auto first = std::find_if(both->ranges.begin(), both->ranges.end(),
                                    [&](const TextRange& range) { return range.end > border.size(); });
    if (first != both->ranges.end() && first->begin < border.size()) continue;
    return std::vector<int32_t>(both->ids.begin() + (first - both->ranges.begin()), both->ids.end());
  }
  return alone;
}

absl::StatusOr<std::vector<int32_t>> EncodeAfter(const Tokenizer& tokenizer, absl::string_view special,
                                                 absl::string_view prompt, std::span<const int32_t> prompt_ids,
                                                 absl::string_view reply) {
  absl::StatusOr<std::vector<int32_t>> both = EncodeText(tokenizer, special, absl::StrCat(prompt, reply));
  if (!both.ok()) return both;
  if (both->size() >= prompt_ids.size() && std::equal(prompt_ids.begin(), prompt_ids.end(), both->begin())) {
    both->erase(both->begin(), both->begin() + static_cast<std::ptrdiff_t>(prompt_ids.size()));
    return both;
  }
  return EncodeBehindBorder(tokenizer, prompt_ids, reply);
}

// The text from piece `i` on, as long as it is the model's or not; `i` moves past it.
std::string TakeText(std::span<const Piece> pieces, size_t& i, bool reply) {
  std::string text;
  for (; i < pieces.size() && pieces[i].kind == Piece::Kind::kText && pieces[i].reply == reply; ++i) {
    text += pieces[i].text;
  }
  return text;
}

// Whether the loss counts each turn.
std::vector<bool> CountedTurns(std::span<const Turn> turns, TrainOn train_on) {
  std::vector<bool> counted(turns.size());
  bool last = true;
  for (size_t i = turns.size(); i-- > 0;) {
    const bool reply = turns[i].role == Role::kAssistant;
    const bool by_rule =
        train_on == TrainOn::kEverything || (reply && (train_on == TrainOn::kReplies || std::exchange(last, false)));
    counted[i] = turns[i].train.value_or(by_rule);
  }
  return counted;
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

std::vector<std::string> ChatTemplate::Names() {
  std::vector<std::string> names;
  for (const TemplateForm& form : TemplateForms()) names.emplace_back(form.name);
  return names;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Named(absl::string_view name) {
  if (const TemplateForm* form = FormOf(name)) return ChatTemplate(*form);
  return absl::NotFoundError(absl::StrCat("there is no conversation template \"", EscapeForMessage(name),
                                          "\"; there are ", absl::StrJoin(Names(), ", ")));
}

absl::StatusOr<ChatTemplate> ChatTemplate::Recognise(absl::string_view jinja) {
  const std::string unix_lines = absl::StrReplaceAll(jinja, {{"\r\n", "\n"}});
  const ContentHash hash = HashOf(Stripped(unix_lines));
  for (const KnownTemplate& known : KnownTemplates()) {
    if (known.hash == hash) return Named(known.form);
  }
  return absl::UnimplementedError(absl::StrCat("the model's chat_template (", jinja.size(), " bytes, XXH3 ", Hex(hash),
                                               ") is not a known one; ", HowToChoose()));
}

absl::StatusOr<ChatTemplate> ChatTemplate::OfModel(Env& env, const std::string& folder) {
  std::string path = JoinPath(folder, "chat_template.jinja");
  std::string jinja;
  if (env.Exists(path)) {
    TDOCK_ASSIGN_OR_RETURN(jinja, ReadFileUpTo(env, path, kMaxTemplateBytes));
  } else {
    path = JoinPath(folder, "tokenizer_config.json");
    TDOCK_ASSIGN_OR_RETURN(const std::string config, ReadFileUpTo(env, path, kMaxTemplateBytes));
    TDOCK_ASSIGN_OR_RETURN(jinja, TemplateInConfig(config, path));
  }
  absl::StatusOr<ChatTemplate> found = Recognise(jinja);
  if (!found.ok()) return Annotate(found.status(), path);
  return found;
}

absl::string_view ChatTemplate::name() const { return form_->name; }

std::string ChatTemplate::Description() const {
  // What the template makes of each kind of turn shows all that it is made of.
  std::string description(form_->name);
  const std::vector<Turn> whole = {{Role::kUser, " u "}, {Role::kAssistant, " a "}, {Role::kUser, "v"}};
  std::vector<Turn> with_system = whole;
  with_system.insert(with_system.begin(), {Role::kSystem, " s "});
  const std::vector<Turn> with_tools = {
      {Role::kUser, "u"}, {Role::kDeveloper, " d "}, {Role::kTool, " t\""}, {Role::kTool, "t"}, {Role::kFunction, "f"}};
  for (const std::vector<Turn>& turns : {whole, with_system, with_tools}) {
    const absl::StatusOr<std::vector<Piece>> pieces = Render(turns, true);
    if (!pieces.ok()) continue;
    for (const Piece& piece : *pieces) {
      absl::StrAppend(&description, "|", static_cast<int>(piece.kind), piece.reply ? "r" : "p", piece.turn, ":",
                      piece.text);
    }
  }
  return description;
}

absl::StatusOr<std::vector<Piece>> ChatTemplate::Render(std::span<const Turn> turns, bool generation_prompt) const {
  TDOCK_RETURN_IF_ERROR(CheckTurns(*form_, turns, generation_prompt));
  Renderer renderer(*form_);
  if (form_->begins_with_bos) renderer.Add(Piece::Kind::kBos, {}, -1, false);
  const bool begins_with_system = IsOfSystem(*form_, turns[0]);
  if (form_->adds_system && !begins_with_system) {
    renderer.AddTurn(Role::kSystem, form_->default_system, -1, form_->system_prefix);
  }
  const bool moves_system = begins_with_system && form_->system != SystemPlace::kOwnTurn;
  const size_t takes_system = form_->system == SystemPlace::kFirstUser ? 1 : turns.size() - 1;
  for (size_t i = moves_system ? 1 : 0; i < turns.size(); ++i) {
    const int turn = static_cast<int>(i);
    if (IsOfTool(turns[i])) {
      const bool first = i == 0 || !IsOfTool(turns[i - 1]);
      const bool last = i + 1 == turns.size() || !IsOfTool(turns[i + 1]);
      renderer.AddToolTurn(turns[i], turn, first, last);
      continue;
    }
    std::string prefix;
    if (i == 0 && begins_with_system) prefix = std::string(form_->system_prefix);
    if (moves_system && i == takes_system) prefix = absl::StrCat(turns[0].content, "\n\n");
    renderer.AddTurn(IsOfSystem(*form_, turns[i]) ? Role::kSystem : turns[i].role, turns[i].content, turn, prefix);
  }
  if (generation_prompt && !form_->user_asks) renderer.Open(Role::kAssistant, -1);
  return renderer.Take();
}

std::string RenderedText(std::span<const Piece> pieces, absl::string_view bos, absl::string_view eos) {
  std::string text;
  for (const Piece& piece : pieces) {
    const bool is_bos = piece.kind == Piece::Kind::kBos;
    absl::StrAppend(&text, is_bos ? bos : piece.kind == Piece::Kind::kEos ? eos : absl::string_view(piece.text));
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> EncodeReply(const Tokenizer& tokenizer, absl::string_view prompt,
                                                 std::span<const int32_t> prompt_ids, absl::string_view reply) {
  return EncodeAfter(tokenizer, "", prompt, prompt_ids, reply);
}

absl::StatusOr<EncodedConversation> EncodeConversation(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                       std::span<const Turn> turns, bool generation_prompt,
                                                       TrainOn train_on) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, chat_template.Render(turns, generation_prompt));
  const std::vector<bool> counted = CountedTurns(turns, train_on);
  EncodedConversation encoded;
  bool in_reply = false;
  const auto append = [&](const std::vector<int32_t>& ids, const Piece& piece) {
    if (piece.reply && !in_reply) encoded.before_last_reply = encoded.ids.size();
    in_reply = piece.reply;
    bool counts = train_on == TrainOn::kEverything;
    if (piece.turn >= 0) {
      const auto turn = static_cast<size_t>(piece.turn);
      counts =
          counted[turn] && (piece.reply || train_on == TrainOn::kEverything || turns[turn].role != Role::kAssistant);
    }
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    encoded.loss_mask.resize(encoded.ids.size(), counts ? 1 : 0);
    encoded.turns.resize(encoded.ids.size(), piece.turn);
  };
  std::string special;  // the token before a text
  for (size_t i = 0; i < pieces.size();) {
    const Piece& first = pieces[i];
    if (first.kind != Piece::Kind::kText) {
      TDOCK_ASSIGN_OR_RETURN(const int32_t id, IdOf(first, chat_template, tokenizer));
      append({id}, first);
      special = tokenizer.IdToToken(id).value_or("");
      ++i;
      continue;
    }
    // Text goes to the tokenizer in one piece, up to a special token; what the model would write is told apart in it.
    const std::string prompt = TakeText(pieces, i, false);
    const Piece* const reply_begin = i < pieces.size() ? &pieces[i] : nullptr;
    const std::string reply = TakeText(pieces, i, true);
    const absl::StatusOr<std::vector<int32_t>> ids = EncodeText(tokenizer, special, prompt);
    if (!ids.ok()) return Annotate(ids.status(), absl::StrCat("turn ", first.turn + 1, " of the conversation"));
    append(*ids, first);
    if (reply.empty()) continue;
    const absl::StatusOr<std::vector<int32_t>> reply_ids = EncodeAfter(tokenizer, special, prompt, *ids, reply);
    if (!reply_ids.ok()) {
      return Annotate(reply_ids.status(), absl::StrCat("turn ", reply_begin->turn + 1, " of the conversation"));
    }
    append(*reply_ids, *reply_begin);
  }
  return encoded;
}

}  // namespace tdock::text
