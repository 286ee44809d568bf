// The page for chatting that the server has at "/".
#pragma once

#include "absl/strings/string_view.h"
#include "core/http/message.h"

namespace tdock::inference {

// chat_page.html, which the build embeds. It has "{{nonce}}" where its style and its script are.
extern const absl::string_view kChatPage;

// The page, with a policy that lets it run only its own script, and ask only its own server. It holds nothing of the
// model or its users, so that it may be read without a key.
http::Response ChatPage();

}  // namespace tdock::inference
