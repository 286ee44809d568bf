// The page that page.h fills in.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::console {

// With {{title}}, {{nonce}} and {{main}} to be replaced.
extern const absl::string_view kPageTemplate;

}  // namespace tdock::console
