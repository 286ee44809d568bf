// How each named template is written. Internal to this module.
#pragma once

#include <span>

#include "absl/strings/string_view.h"
#include "text/content_hash.h"
#include "text/conversation.h"

namespace tdock::text {

// Where a first system turn goes.
enum class SystemPlace {
  kOwnTurn,
  kFirstUser,  // before the first user turn's content, with two line ends between
  kLastUser,   // before the last one's, which must end the conversation
  kNowhere     // refused
};

// Where turns of tools and functions go.
enum class ToolPlace {
  kNowhere,  // refused
  kOwnTurn,  // under the name of the role
  kIpython,  // in a turn of "ipython", as a JSON string
  kUserTurn  // in a user's turn, shared by consecutive ones, each between <tool_response> and </tool_response>
};

// A part of a template's frame: special tokens by their spelling, the rest text.
struct FramePart {
  ChatTemplate::Piece::Kind kind = ChatTemplate::Piece::Kind::kText;
  absl::string_view text = {};
};

struct TemplateForm {
  absl::string_view name;
  bool begins_with_bos = false;
  // Around what a turn says. `role_after_open` puts the role's name after `open`, as text.
  struct Frame {
    std::span<const FramePart> open = {};
    bool role_after_open = false;
    std::span<const FramePart> header_end = {};  // after the role's name
    std::span<const FramePart> close = {};       // of an assistant's turn, part of the reply
    std::span<const FramePart> after = {};
  };
  Frame user;  // and every other role that has a turn of its own
  Frame assistant;
  // A reply begins with a blank before its content.
  absl::string_view reply_begins = {};
  // Whether a user's turn is followed by a reply without more.
  bool user_asks = false;
  bool must_alternate = false;
  SystemPlace system = SystemPlace::kOwnTurn;
  bool names_developer = false;  // a developer's turn has that name; otherwise it is the system's
  ToolPlace tools = ToolPlace::kNowhere;
  bool adds_system = false;               // where the first turn is another
  absl::string_view default_system = {};  // what it then says
  absl::string_view system_prefix = {};   // before what the first system turn says
  bool strips_prompts = false;            // Unicode blanks around what system and user say
  bool strips_replies = false;
};

std::span<const TemplateForm> TemplateForms();
// Nullptr where there is none.
const TemplateForm* FormOf(absl::string_view name);

// A Jinja text, known by its hash without outer blanks and with "\n" as line end.
struct KnownTemplate {
  ContentHash hash;
  absl::string_view form;
};
std::span<const KnownTemplate> KnownTemplates();

}  // namespace tdock::text
