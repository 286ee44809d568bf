#include "text/reply_finder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"
#include "text/char_tokenizer.h"
#include "text/conversation.h"
#include "text/dialogue.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::text {
namespace {

constexpr size_t kAllExact = std::numeric_limits<size_t>::max();

// Bytes, and the special tokens of every template.
std::unique_ptr<Tokenizer> BytesWithSpecials() {
  small::Json json = small::SmallByteLevel();
  int32_t id = 262;
  for (const char* special : {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                              "[INST]", "[/INST]", "<s>", "</s>"}) {
    json["added_tokens"].push_back(small::AddedTokenJson(id++, special, true));
  }
  TokenizerConfig config;
  config.bos = "<s>";
  config.eos = "</s>";
  return JsonTokenizer::Create(json, config, {}).value();
}

// As that of SmolLM2: a first system turn where there is none.
constexpr char kFirstSystem[] = R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

// As that of Qwen3: thinking is only shown behind the last message of the user.
constexpr char kThinksLast[] = R"({%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
  {%- if ns.searching and message.role == 'user' %}
    {%- set ns.searching = false %}{%- set ns.last = messages|length - 1 - loop.index0 %}
  {%- endif %}
{%- endfor %}
{%- for message in messages %}
  {%- if message.role == 'assistant' %}
    {%- set content = message.content or '' %}
    {%- set thinking = message.reasoning_content or '' %}
    {%- if not thinking and '</think>' in content %}
      {%- set thinking = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
      {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>assistant\n' }}
    {%- if loop.index0 > ns.last and (loop.last or thinking) %}
      {{- '<think>\n' + thinking.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
    {%- else %}{{- content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}{{- '\n<tool_call>\n' + call | tojson + '\n</tool_call>' }}{%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif message.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
  {%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% if think %}{{- '<think>\n' }}{% endif %}{%- endif %})";

// Thinking is left out of replies once more turns follow.
constexpr char kForgetsThinking[] = R"({%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- set content = m.content | trim %}
{%- if not loop.last and '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- content + '<|im_end|>\n' }}
{%- if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% if m.reasoning_content %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %})";

// As that of Zephyr: what asks for a reply stands within the loop.
constexpr char kAsksInTheLoop[] = R"({% for message in messages %}{% if message['role'] == 'user' %}
{{- '<|user|>\n' + message['content'] + eos_token }}{% elif message['role'] == 'assistant' %}
{{- '<|assistant|>\n' + message['content'] + eos_token }}{% else %}
{{- '<|system|>\n' + message['content'] + eos_token }}{% endif %}
{%- if loop.last and add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}{% endfor %})";

// Text behind the last turn, which may be how the next one begins.
constexpr char kEndsWithText[] =
    "{%- for m in messages %}{{ m.role[0] ~ ':' ~ m.content }}{% if loop.last %}ab<|im_end|>{% endif %}{% endfor %}";
constexpr char kContentOnly[] = "{%- for m in messages %}{{ m.content }}{% if loop.last %}ab{% endif %}{% endfor %}";

// Nothing says which turn the template's own text belongs to.
constexpr char kByNumber[] =
    "{%- for i in range(messages|length) %}{{ '<|im_start|>' + messages[i].role + '\n' + messages[i].content + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// Each reply reads otherwise.
constexpr char kNumbers[] =
    "{%- for m in messages %}{{ loop.index ~ m.role ~ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ messages|length + 1 }}assistant{% endif %}";

enum class Kinds {
  kAlternating,  // plain turns of user and assistant
  kPlain,        // more roles, at any place
  kAll           // thinking and calls of tools, too
};

std::vector<Turn> Conversation(size_t turns, uint32_t seed, Kinds kinds) {
  std::minstd_rand random(seed);
  const auto one_in = [&](uint32_t n) { return random() % n == 0; };
  const std::vector<std::string> contents = {"a", "ab c", " b\n", "abab", "b", ""};
  const auto content = [&] { return contents[random() % contents.size()]; };
  std::vector<Turn> made;
  if (kinds != Kinds::kAlternating && one_in(2)) made.push_back({Role::kSystem, "s"});
  while (made.size() < turns) {
    made.push_back({Role::kUser, content()});
    if (kinds != Kinds::kAlternating && one_in(9)) made.push_back({Role::kUser, content()});
    if (kinds != Kinds::kAlternating && one_in(12)) made.push_back({Role::kSystem, "be brief"});
    Turn reply{Role::kAssistant, content()};
    while (kinds == Kinds::kAll && one_in(4)) {
      Turn call{.role = Role::kAssistant, .content = one_in(3) ? "I look." : "", .has_content = !one_in(3)};
      call.fields = absl::StrCat(R"({"tool_calls": [{"name": "f", "arguments": {"x": )", random() % 100, "}}]",
                                 one_in(2) ? R"(, "reasoning_content": "hm")" : "", "}");
      if (!call.has_content) call.content.clear();
      made.push_back(call);
      do made.push_back({Role::kTool, "42"});
      while (one_in(3));
    }
    if (kinds == Kinds::kAll && one_in(4)) reply.content = one_in(3) ? "<think>so</think>" : "<think>so</think>\n\nab";
    if (kinds == Kinds::kAll && one_in(4)) reply.fields = R"({"reasoning_content": "well\n"})";
    made.push_back(reply);
  }
  return made;
}

RenderedToEncode Rendered(const ChatTemplate& form, const Tokenizer& tokenizer, const std::vector<Turn>& turns,
                          bool generation_prompt = false) {
  auto rendered = RenderToEncode(form, tokenizer, turns, {}, generation_prompt, {});
  EXPECT_EQ(rendered.status(), absl::OkStatus()) << form.title();
  return *std::move(rendered);
}

// All that is found is what it would be if every reply was rendered. Gives how many renders that would be, and how many
// there are.
std::pair<int64_t, int64_t> ExpectAsExact(const ChatTemplate& form, const Tokenizer& tokenizer,
                                          const std::vector<Turn>& turns, bool generation_prompt = false) {
  const RenderedToEncode rendered = Rendered(form, tokenizer, turns, generation_prompt);
  Renderings all(rendered.conversation, 0), some(rendered.conversation, 0);
  const RepliesOfConversation exact = FindReplies(rendered, turns, all, kAllExact).value();
  const RepliesOfConversation found = FindReplies(rendered, turns, some).value();
  EXPECT_EQ(found.replies, exact.replies);
  EXPECT_EQ(found.rewritten, exact.rewritten);
  EXPECT_EQ(FindPrompts(rendered, turns).value().ends, FindPrompts(rendered, turns, kAllExact).value().ends);
  return {all.renders(), some.renders()};
}

struct Case {
  std::string name;
  std::string jinja;  // "": a named template
  Kinds kinds;
  std::string variables = "{}";
  bool saves = true;  // whether fewer renders suffice
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {{"first_system", kFirstSystem, Kinds::kPlain},
                             {"thinks_last", kThinksLast, Kinds::kAll},
                             {"thinks_last_and_asks_so", kThinksLast, Kinds::kAll, R"({"think": true})"},
                             {"forgets_thinking", kForgetsThinking, Kinds::kAll},
                             {"asks_in_the_loop", kAsksInTheLoop, Kinds::kPlain},
                             {"ends_with_text", kEndsWithText, Kinds::kPlain},
                             {"content_only", kContentOnly, Kinds::kPlain},
                             {"by_number", kByNumber, Kinds::kPlain},
                             {"numbers", kNumbers, Kinds::kPlain, "{}", /*saves=*/false}};
  for (const char* name : {"chatml", "llama3", "llama3.1", "qwen"}) cases.push_back({name, "", Kinds::kPlain});
  for (const char* name : {"mistral", "mistral_v3", "human_assistant"})
    cases.push_back({name, "", Kinds::kAlternating});
  return cases;
}

ChatTemplate TemplateOf(const Case& of) {
  if (of.jinja.empty()) return ChatTemplate::Named(of.name).value();
  return ChatTemplate::Parse(of.jinja).value().WithVariables(of.variables).value();
}

TEST(FindReplies, OfALongConversationAreThoseOfRenderingEveryReply) {
  const auto tokenizer = BytesWithSpecials();
  for (const Case& of : Cases()) {
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(absl::StrCat(of.name, ", seed ", seed));
      ExpectAsExact(TemplateOf(of), *tokenizer, Conversation(40 + 5 * seed, seed, of.kinds));
    }
    const size_t many = of.kinds == Kinds::kAll ? 300 : 160;
    SCOPED_TRACE(absl::StrCat(of.name, ", ", many, " turns"));
    const auto [exact, found] = ExpectAsExact(TemplateOf(of), *tokenizer, Conversation(many, 7, of.kinds));
    if (of.saves) {
      EXPECT_LT(found, exact);
    } else {
      EXPECT_GE(found, exact);
    }
  }
}

TEST(FindReplies, AreThoseOfRenderingEveryReplyBeforeAPromptAndASystemTurn) {
  const auto tokenizer = BytesWithSpecials();
  std::vector<Turn> turns = Conversation(60, 3, Kinds::kAlternating);
  turns.insert(turns.begin(), {Role::kSystem, "s"});
  turns.push_back({Role::kUser, "q"});
  for (const char* name : {"mistral", "mistral_v3", "llama3.1", "qwen"}) {
    SCOPED_TRACE(name);
    ExpectAsExact(*ChatTemplate::Named(name), *tokenizer, turns, /*generation_prompt=*/true);
  }
}

// The template ends conversations of more than 30 turns otherwise.
TEST(FindReplies, OfAClassThatDepartsInSeveralWaysAreAllRendered) {
  const auto tokenizer = BytesWithSpecials();
  const ChatTemplate form = *ChatTemplate::Parse(
      "{%- for m in messages %}{{ m.role ~ m.content }}<|im_end|>{% endfor %}"
      "{% if messages|length > 30 and not add_generation_prompt %}x{% endif %}");
  const std::vector<Turn> turns = Conversation(60, 5, Kinds::kAlternating);
  const auto [exact, found] = ExpectAsExact(form, *tokenizer, turns);
  EXPECT_GE(found, 3 * exact / 4);
}

TEST(FindReplies, DoesNotRenderMoreOftenForMoreTurns) {
  const auto tokenizer = BytesWithSpecials();
  for (const char* jinja : {kFirstSystem, kThinksLast, kForgetsThinking, kAsksInTheLoop, kByNumber}) {
    const ChatTemplate form = *ChatTemplate::Parse(jinja);
    const auto renders = [&](size_t turns) {
      std::vector<Turn> made;
      for (size_t i = 0; i < turns; ++i) made.push_back({i % 2 == 0 ? Role::kUser : Role::kAssistant, "a"});
      return EncodeConversation(form, *tokenizer, made).value().renders;
    };
    EXPECT_LE(renders(400), renders(200) + 2) << jinja;
    EXPECT_LE(renders(400), 50) << jinja;
    EXPECT_LE(renders(32), 33) << "each reply twice, and the whole once: " << jinja;
  }
}

std::vector<Turn> OneLetterTurns(int64_t count) {
  std::vector<Turn> turns;
  for (int64_t i = 0; i < count; ++i) turns.push_back({i % 2 == 0 ? Role::kUser : Role::kAssistant, "1"});
  return turns;
}

TEST(EncodeConversation, TakesATimeThatGrowsWithTheTurns) {
  const auto tokenizer = BytesWithSpecials();
  // Without special tokens, all borders are in one piece of text.
  for (const char* jinja : {kFirstSystem, "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}"}) {
    const ChatTemplate form = *ChatTemplate::Parse(jinja);
    ExpectLinear(
        [&](int64_t turns) { EXPECT_TRUE(EncodeConversation(form, *tokenizer, OneLetterTurns(turns)).ok()) << jinja; },
        1000);
  }
}

TEST(EncodeConversation, TakesATimeThatGrowsWithTheTools) {
  const auto tokenizer = BytesWithSpecials();
  const ChatTemplate form = *ChatTemplate::Parse(
      "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role ~ m.content }}<|im_end|>"
      "{% endfor %}");
  const std::vector<Turn> turns = OneLetterTurns(6);
  ExpectLinear(
      [&](int64_t tools) {
        std::string list = "[";
        for (int64_t i = 0; i < tools; ++i) {
          absl::StrAppend(&list, i == 0 ? "" : ",", R"({"name": "f", "parameters": {"type": "object"}})");
        }
        EXPECT_TRUE(EncodeConversation(form, *tokenizer, turns, {.context = {.tools = list + "]"}}).ok());
      },
      1000);
}

// A dialogue of so many replies, in which turns must be dropped for the next.
TEST(Dialogue, TakesATimeForAPromptThatGrowsWithTheTurns) {
  const auto tokenizer = BytesWithSpecials();
  const ChatTemplate form = *ChatTemplate::Parse(kFirstSystem);
  std::map<int64_t, Dialogue> dialogues;
  const auto of = [&](int64_t replies) -> const Dialogue& {
    const auto [found, is_new] = dialogues.try_emplace(replies, form, *tokenizer, std::nullopt);
    for (int64_t i = 0; is_new && i < replies; ++i) {
      EXPECT_TRUE(found->second.Ask("q", 1 << 20).ok());
      EXPECT_TRUE(found->second.Reply({'a'}).ok());
    }
    return found->second;
  };
  ExpectLinear(
      [&](int64_t replies) {
        for (int i = 0; i < 4; ++i) {
          Dialogue dialogue = of(replies);
          const auto size = static_cast<int64_t>(dialogue.Ask("q", 1 << 20).value().ids.size());
          dialogue.Withdraw();
          EXPECT_EQ(dialogue.Ask("q", size - 1).value().dropped_turns, 2);
        }
      },
      100);
}

// Borders beyond the 16th in one piece of text are parted as the first ones are.
TEST(EncodeConversation, PartsManyRepliesOfOnePieceOfTextAsTheirPromptsDo) {
  const struct {
    std::unique_ptr<Tokenizer> tokenizer;
    const char *first, *other;  // of which a token is made
  } cases[] = {{JsonTokenizer::Create(small::SmallByteLevel(), {}, {}).value(), "he", "llo"},
               {JsonTokenizer::Create(small::SmallByteFallback(), {}, {}).value(), "a", "b"}};
  const ChatTemplate form = *ChatTemplate::Parse("{% for m in messages %}{{ m.content }}{% endfor %}");
  for (const auto& [tokenizer, first, other] : cases) {
    std::vector<Turn> turns;
    for (size_t i = 0; i < 60; ++i) {
      turns.push_back({i % 2 == 0 ? Role::kUser : Role::kAssistant, i % 3 == 0 ? first : other});
    }
    const EncodedConversation whole = EncodeConversation(form, *tokenizer, turns).value();
    EXPECT_TRUE(whole.parted);
    for (size_t reply = 1; reply < turns.size(); reply += 2) {
      const std::vector<int32_t> prompt =
          EncodeConversation(form, *tokenizer, std::span(turns).first(reply), {.generation_prompt = true}).value().ids;
      ASSERT_LE(prompt.size(), whole.ids.size());
      EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), whole.ids.begin())) << "before turn " << reply;
    }
  }
}

TEST(EncodeConversation, EndsAtTheMostTokens) {
  const auto tokenizer = BytesWithSpecials();
  const ChatTemplate form = *ChatTemplate::Parse(kFirstSystem);
  const std::vector<Turn> turns = OneLetterTurns(40);
  const EncodedConversation whole = EncodeConversation(form, *tokenizer, turns).value();
  EXPECT_EQ(EncodeConversation(form, *tokenizer, turns, {.max_tokens = whole.ids.size()}).value().ids, whole.ids);
  for (const size_t most : {whole.ids.size() - 1, size_t{7}, size_t{0}}) {
    EXPECT_THAT(EncodeConversation(form, *tokenizer, turns, {.max_tokens = most}).status(),
                Fails(absl::StatusCode::kOutOfRange, {absl::StrCat("more than ", most, " tokens")}));
  }
}

TEST(EncodeConversation, EndsWithTheErrorOfItsStopCheckWhereverItIsPolled) {
  const auto tokenizer = BytesWithSpecials();
  const ChatTemplate form = *ChatTemplate::Parse(kFirstSystem);
  const std::vector<Turn> turns = OneLetterTurns(60);
  int64_t polls = 0;
  const auto after = [&](int64_t most) {
    polls = 0;
    const StopCheck stop = [&polls, most] {
      return ++polls > most ? absl::DeadlineExceededError("enough") : absl::OkStatus();
    };
    return EncodeConversation(form, *tokenizer, turns, {.stop = stop}).status();
  };
  EXPECT_EQ(after(1 << 20), absl::OkStatus());
  const int64_t all = polls;
  EXPECT_GT(all, 60);
  for (int64_t most = 0; most < all; most += 1 + most / 4) {
    EXPECT_EQ(after(most), absl::DeadlineExceededError("enough")) << most;
    EXPECT_EQ(polls, most + 1);
  }
}

TEST(ChatTemplate, MakesLittleOfLittle) {
  const ChatTemplate form = *ChatTemplate::Parse("{{ messages[0].content * 2000000 }}");
  const std::vector<Turn> turns = {{Role::kUser, "a"}};
  EXPECT_THAT(form.Render(turns, {}, false, {}).status(), Fails(absl::StatusCode::kResourceExhausted, {"output"}));
  const std::vector<Turn> long_turns = {{Role::kUser, std::string(200'000, 'a')}};
  EXPECT_EQ(ChatTemplate::Parse("{{ messages[0].content * 10 }}")->Render(long_turns, {}, false, {})->text.size(),
            2'000'000U);
}

}  // namespace
}  // namespace tdock::text
