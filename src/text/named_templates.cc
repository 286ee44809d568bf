// The texts are this project's own. They render as the templates of these models do: Llama 3 and 3.1, Qwen2.5 and
// Mistral 7B Instruct by their model cards; and for human_assistant, as DeepSpeed-Chat's data sets are written.
// tests/oracle/test_conversations.py compares them with the models' own texts.
#include "text/named_templates.h"

#include <array>

namespace tdock::text {
namespace {

constexpr absl::string_view kChatml = R"jinja(
{%- for message in messages -%}
  {{- '<|im_start|>' ~ message.role ~ '\n' -}}
  {%- if message.role == 'assistant' -%}
    {%- generation -%}{{- message.content ~ '<|im_end|>' -}}{%- endgeneration -%}
  {%- else -%}
    {{- message.content ~ '<|im_end|>' -}}
  {%- endif -%}
  {{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})jinja";

constexpr absl::string_view kQwen = R"jinja(
{%- if messages[0].role not in ['system', 'developer'] -%}
  {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- set of_tool = message.role in ['tool', 'function'] -%}
  {%- if of_tool -%}
    {%- if not loop.previtem or loop.previtem.role not in ['tool', 'function'] -%}
      {{- '<|im_start|>user' -}}
    {%- endif -%}
    {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' -}}
    {%- if not loop.nextitem or loop.nextitem.role not in ['tool', 'function'] -%}
      {{- '<|im_end|>\n' -}}
    {%- endif -%}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- generation -%}{{- message.content ~ '<|im_end|>' -}}{%- endgeneration -%}
    {{- '\n' -}}
  {%- else -%}
    {%- set role = 'system' if message.role == 'developer' else message.role -%}
    {{- '<|im_start|>' ~ role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})jinja";

constexpr absl::string_view kLlama3 = R"jinja(
{{- bos_token -}}
{%- for message in messages -%}
  {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' -}}
  {%- if message.role == 'assistant' -%}
    {%- generation -%}{{- message.content | trim ~ '<|eot_id|>' -}}{%- endgeneration -%}
  {%- else -%}
    {{- message.content | trim ~ '<|eot_id|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%})jinja";

constexpr absl::string_view kLlama31 = R"jinja(
{{- bos_token -}}
{%- set dates = 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' -%}
{%- if messages[0].role != 'system' -%}
  {{- '<|start_header_id|>system<|end_header_id|>\n\n' ~ dates ~ '<|eot_id|>' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role in ['tool', 'function'] -%}
    {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' ~ message.content | tojson ~ '<|eot_id|>' -}}
  {%- elif message.role == 'assistant' -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
    {%- generation -%}{{- message.content | trim ~ '<|eot_id|>' -}}{%- endgeneration -%}
  {%- else -%}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' -}}
    {%- if loop.first and message.role == 'system' -%}{{- dates -}}{%- endif -%}
    {{- message.content | trim ~ '<|eot_id|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%})jinja";

// Before the three in which user and assistant alternate. `refuse` is called with what is wrong with a turn, `check`
// with the number of turns before those that alternate.
constexpr absl::string_view kAlternating = R"jinja(
{%- macro refuse(turn, what) -%}
  {{- raise_exception('turn ' ~ turn ~ ' of the conversation: ' ~ what ~ ', which the template "' ~ name ~ '" cannot express') -}}
{%- endmacro -%}
{%- macro check(before) -%}
  {%- for message in messages -%}
    {%- if message.role in ['tool', 'function'] -%}{{- refuse(loop.index, 'it is of a ' ~ message.role) -}}{%- endif -%}
    {%- if loop.index0 >= before -%}
      {%- set due = 'assistant' if (loop.index0 - before) % 2 else 'user' -%}
      {%- if message.role != due -%}
        {{- refuse(loop.index, 'it is of the ' ~ message.role ~ ' where the ' ~ due ~ "'s is due") -}}
      {%- endif -%}
    {%- endif -%}
  {%- endfor -%}
  {%- if before and messages | length == 1 -%}{{- refuse(1, "a system turn without a user's") -}}{%- endif -%}
  {%- if add_generation_prompt and messages[-1].role != 'user' -%}
    {{- refuse(messages | length, "a prompt for a reply after a turn that is not the user's") -}}
  {%- endif -%}
{%- endmacro -%})jinja";

constexpr absl::string_view kHumanAssistant = R"jinja(
{%- if messages[0].role in ['system', 'developer'] -%}
  {{- refuse(1, 'it is of the ' ~ messages[0].role) -}}
{%- endif -%}
{{- check(0) -}}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {{- ' Human: ' ~ message.content ~ ' Assistant:' -}}
  {%- else -%}
    {%- generation -%}{{- ' ' ~ message.content ~ eos_token -}}{%- endgeneration -%}
  {%- endif -%}
{%- endfor -%})jinja";

constexpr absl::string_view kMistral = R"jinja(
{%- set system = 1 if messages[0].role in ['system', 'developer'] else 0 -%}
{{- check(system) -}}
{{- bos_token -}}
{%- for message in messages[system:] -%}
  {%- if message.role == 'user' -%}
    {{- ' [INST] ' -}}
    {%- if loop.first and system -%}{{- messages[0].content ~ '\n\n' -}}{%- endif -%}
    {{- message.content ~ ' [/INST]' -}}
  {%- else -%}
    {%- generation -%}{{- ' ' ~ message.content ~ eos_token -}}{%- endgeneration -%}
  {%- endif -%}
{%- endfor -%})jinja";

constexpr absl::string_view kMistralV3 = R"jinja(
{%- set system = 1 if messages[0].role in ['system', 'developer'] else 0 -%}
{{- check(system) -}}
{%- if system and messages[-1].role != 'user' -%}
  {{- refuse(1, "a system turn in a conversation that does not end with the user's") -}}
{%- endif -%}
{{- bos_token -}}
{%- for message in messages[system:] -%}
  {%- if message.role == 'user' -%}
    {{- '[INST] ' -}}
    {%- if loop.last and system -%}{{- messages[0].content ~ '\n\n' -}}{%- endif -%}
    {{- message.content ~ '[/INST]' -}}
  {%- else -%}
    {%- generation -%}{{- ' ' ~ message.content | trim ~ eos_token -}}{%- endgeneration -%}
  {%- endif -%}
{%- endfor -%})jinja";

constexpr std::array<absl::string_view, 2> kChatmlTokens = {"<|im_start|>", "<|im_end|>"};
constexpr std::array<absl::string_view, 3> kLlamaTokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
constexpr std::array<absl::string_view, 2> kMistralV3Tokens = {"[INST]", "[/INST]"};

constexpr NamedTemplate kTemplates[] = {
    {.name = "chatml", .jinja = kChatml, .tokens = kChatmlTokens},
    {.name = "human_assistant", .prelude = kAlternating, .jinja = kHumanAssistant, .tokens = {}},
    {.name = "llama3", .jinja = kLlama3, .tokens = kLlamaTokens},
    {.name = "llama3.1", .jinja = kLlama31, .tokens = kLlamaTokens},
    {.name = "mistral", .prelude = kAlternating, .jinja = kMistral, .tokens = {}},
    {.name = "mistral_v3", .prelude = kAlternating, .jinja = kMistralV3, .tokens = kMistralV3Tokens},
    {.name = "qwen", .jinja = kQwen, .tokens = kChatmlTokens},
};

}  // namespace

std::span<const NamedTemplate> NamedTemplates() { return kTemplates; }

}  // namespace tdock::text
