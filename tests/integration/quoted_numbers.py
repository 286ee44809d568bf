"""Numbers that pages quote, and where the source has them."""

import re

UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
WORDS = {"four": 4, "six": 6, "twenty": 20}
NET, WIRE, CONSOLE, REWARD = "src/core/net/", "src/dock/service/wire/", "src/dock/service/console/", "src/trainer/reward/"
TABLE, STORE, ENVIRONMENT = "src/dock/table/", "src/dock/store/", "src/trainer/environment/"
# (page, pattern of the number there, file that has it, pattern there); a space in the first pattern is any white space.
COUNTS = [
    ("docs/frame.md", r"by default (2\^32) rows", "include/tdock/frame.h", r"max_rows = ([^;]+);"),
    ("docs/frame.md", r"(\d+) columns, names", "include/tdock/frame.h", r"max_columns = ([^;]+);"),
    ("docs/frame.md", r"names of (\d+) bytes", "include/tdock/frame.h", r"max_name_bytes = ([^;]+);"),
    ("docs/frame.md", r"nested (\d+) deep", "include/tdock/frame.h", r"max_meta_depth = ([^;]+);"),
    ("docs/frame.md", r"header of (\d+ MiB)", "include/tdock/frame.h", r"max_header_bytes = ([^;]+);"),
    ("docs/frame.md", r"(\d+ GiB) in all", "include/tdock/frame.h", r"max_frame_bytes = ([^;]+);"),
    ("docs/dock.md", r"\| partitions\sof\sa\sdock \| ([\d,]+) \|", TABLE + "limits.h", r"kMaxPartitions = ([^;]+);"),
    ("docs/dock.md", r"\| columns of a partition, .* \| ([\d,]+) \|", TABLE + "limits.h", r"kMaxColumns = ([^;]+);"),
    ("docs/dock.md", r"\| consumers of a partition; .* \| ([\d,]+) \|", TABLE + "limits.h", r"kMaxConsumers = ([^;]+);"),
    ("docs/dock.md", r"\(`reads`\) \| ([\d,]+) \|", TABLE + "page.h", r"kMaxReads = ([^;]+);"),
    ("docs/dock.md", r"\| rows of one put \| (\S+) \|", TABLE + "limits.h", r"kMaxRowsPerPut = ([^;]+);"),
    ("docs/dock.md", r"\| rows of a group \| ([\d,]+) \|", TABLE + "limits.h", r"kMaxGroupSize = ([^;]+);"),
    ("docs/dock.md", r"\| tags of a row, .* \| ([\d,]+); ", TABLE + "limits.h", r"kMaxTags = ([^;]+);"),
    ("docs/dock.md", r"\| tags of a row, .*; ([\d,]+) \|", TABLE + "name.cc", r"kMaxTagBytes = ([^;]+);"),
    ("docs/dock.md", r"\| waiting fetches .* \| ([\d,]+); ", TABLE + "limits.h", r"kMaxWaitingFetches = ([^;]+);"),
    ("docs/dock.md", r"\| waiting fetches .*; ([\d,]+) \|", TABLE + "limits.h", r"kMaxWaitingPuts = ([^;]+);"),
    ("docs/dock.md", r"\| ranks of a consumer \| ([\d,]+) \|", TABLE + "table_check.cc", r"kMaxRanks = ([^;]+);"),
    ("docs/dock.md", r"\| bytes of a name or key \| ([\d,]+) \|", TABLE + "name.cc", r"kMaxBytes = ([^;]+);"),
    ("docs/dock.md", r"shows the first (\w+)\.", TABLE + "table_text.h", r"kMostNamed = ([^;]+);"),
    ("docs/wire-format.md", r"the protocol: (\d+) \|", NET + "message.h", r"kProtocol = ([^;]+);"),
    ("docs/wire-format.md", r"\| 1 hello \| .* \| (\d+ KiB) \|", NET + "message.h", r"kMaxHelloBytes = ([^;]+);"),
    ("docs/wire-format.md", r"\| (?:2 welcome|3 goodbye) \| .* \| (\d+ KiB) \|", NET + "message.h", r"kMaxWelcomeBytes = ([^;]+);"),
    ("docs/wire-format.md", r"\| 4 data \| .* \| (\d+ MiB) \|", NET + "message.h", r"kMaxDataBytes = ([^;]+);"),
    ("docs/wire-format.md", r"\| (?:32 call|34 reply) \| .* \| (\d+ MiB) \|", WIRE + "dock_message.h", r"kMaxControlBytes = ([^;]+);"),
    ("docs/wire-format.md", r"If more than (\d+) wait", WIRE + "session.h", r"kMaxReplies = ([^;]+);"),
    ("docs/wire-format.md", r"session may have ([\d,]+) calls", WIRE + "session.h", r"kMaxCalls = ([^;]+);"),
    ("docs/wire-format.md", r"more than ([\d,]+) runs", WIRE + "dock_connection.h", r"max_view_runs = ([^;]+);"),
    ("docs/wire-format.md", r"has not arrived \| (\d+);", NET + "server.h", r"max_strangers = ([^;]+);"),
    ("docs/wire-format.md", r"handshake of TLS \| (\d+) s", NET + "server.h", r"hello_within = absl::Seconds\((\d+)\)"),
    ("docs/wire-format.md", r"a token \| ([\d,]+) bytes", NET + "credentials.cc", r"kMaxTokenBytes = ([^;]+);"),
    ("docs/wire-format.md", r"behind a reply \| (\d+ GiB);", WIRE + "service.h", r"max_frame_bytes = ([^;]+);"),
    ("docs/wire-format.md", r"frame is incomplete \| (\d+);", WIRE + "dock_connection.h", r"max_uploads = ([^;]+);"),
    ("docs/wire-format.md", r"not acknowledged \| ([\d,]+) \|", WIRE + "session.h", r"kMaxCalls = ([^;]+);"),
    ("docs/wire-format.md", r"replies hold \| (\d+ GiB) of cells", WIRE + "session.h", r"kMaxBytes = \{.cells = (.+), "),
    ("docs/wire-format.md", r"separately; (\d+ MiB) of messages", WIRE + "session.h", r"kMaxBytes = .*\.messages = (.+)\};"),
    ("docs/wire-format.md", r"\(`inline_bytes`\) \| (\d+ MiB) \|", WIRE + "rows_codec.h", r"kMaxInlineBytes = ([^;]+);"),
    ("docs/wire-format.md", r"has not read \| (\d+ MiB);", NET + "server.h", r"max_queued_bytes = ([^;]+);"),
    ("docs/service.md", r"`--listen HOST:PORT` \| `127.0.0.1:(\d+)`", CONSOLE + "connect.h", r"kDefaultPort = ([^;]+);"),
    ("docs/service.md", r"`--drain SECONDS` \| (\d+) \|", CONSOLE + "serve_options.h", r"drain = absl::Seconds\((\d+)\)"),
    ("docs/service.md", r"`--session-grace SECONDS` \| (\d+) \|", CONSOLE + "serve_options.h", r"session_grace = absl::Seconds\((\d+)\)"),
    ("docs/service.md", r"hello of at most (\d+ KiB)", NET + "message.h", r"kMaxHelloBytes = ([^;]+);"),
    ("docs/service.md", r"within (\d+) s, the handshake", NET + "server.h", r"hello_within = absl::Seconds\((\d+)\)"),
    ("docs/service.md", r"more than (\d+) connections have not", NET + "server.h", r"max_strangers = ([^;]+);"),
    ("docs/service.md", r"`reconnect_for` \((\d+) s\)", "include/tdock/remote_dock.h", r"reconnect_for = absl::Seconds\((\d+)\)"),
    ("docs/service.md", r"`answer_within` \((\d+) s\)", "include/tdock/remote_dock.h", r"answer_within = absl::Seconds\((\d+)\)"),
    ("docs/service.md", r"at most (\d+ KiB) per partition", STORE + "block_store.h", r"kFreeInOpenBytes = ([^;]+);"),
    ("docs/service.md", r"up to (\d+) bytes for each column", STORE + "block_store.h", r"kLeastOpenBytes = ([^;]+);"),
    ("docs/service.md", r"The last (\d+) descriptors", STORE + "segment_memory.cc", r"kDescriptorsForOthers = ([^;]+);"),
    ("docs/service.md", r"refreshes itself every (\d+) s", CONSOLE + "page.html", r"setTimeout\(resume, (\d+)000\)"),
    ("docs/service.md", r"(?:arrive|read) within (\d+) s\b", CONSOLE + "status_server.h", r"request_timeout = absl::Seconds\((\d+)\)"),
    ("docs/service.md", r"and have at most (\d+ KiB)", CONSOLE + "status_server.cc", r"kMaxHeadBytes = ([^;]+);"),
    ("docs/service.md", r"Up to (\w+) responses", CONSOLE + "status_server.h", r"threads = ([^;]+);"),
    ("docs/service.md", r"more than (\d+) connections", CONSOLE + "status_server.cc", r"kMaxConnections = ([^;]+);"),
    ("docs/service.md", r"(\d+ MiB) of unread responses", CONSOLE + "status_server.cc", r"kMaxUnreadBytes = ([^;]+);"),
    ("docs/service.md", r"responded after (\d+) s\b", "include/tdock/dock_server.h", r"stall_after = absl::Seconds\((\d+)\)"),
    ("docs/service.md", r"messages of more than (\d+ KiB)", WIRE + "dock_connection.cc", r"kLongMessageBytes = ([^;]+);"),
    ("SECURITY.md", r"bounded \((\d+ MiB), depth", "src/core/config/spec.h", r"max_bytes = ([^;]+);"),
    ("SECURITY.md", r"bounded \(.* depth (\d+), [\d,]+ keys\)", "src/core/config/spec.h", r"max_depth = ([^;]+);"),
    ("SECURITY.md", r"([\d,]+) keys\)", "src/core/config/spec.h", r"max_keys = ([^;]+);"),
    ("SECURITY.md", r"hello of at most (\d+ KiB)", NET + "message.h", r"kMaxHelloBytes = ([^;]+);"),
    ("SECURITY.md", r"come within (\d+) s", NET + "server.h", r"hello_within = absl::Seconds\((\d+)\)"),
    ("SECURITY.md", r"at most (\d+) such connections", NET + "server.h", r"max_strangers = ([^;]+);"),
    ("SECURITY.md", r"messages \((\d+ MiB)\)", WIRE + "dock_message.h", r"kMaxControlBytes = ([^;]+);"),
    ("SECURITY.md", r"unread replies \((\d+ MiB)\)", NET + "server.h", r"max_queued_bytes = ([^;]+);"),
    ("docs/rewards.md", r"(?:a\sline\sof\smore\sthan|of\sat\smost) (\d+ MiB)", REWARD + "external/line_process.h", r"kMostLineBytes = ([^;]+);"),
    ("docs/rewards.md", r"lines in 10 s, of (\d+) bytes", REWARD + "external/log_lines.cc", r"kMostBytes = (\d+)"),
    ("docs/rewards.md", r"\| (\d+) lines in 10 s", REWARD + "external/log_lines.cc", r"kMostLines = ([^;]+);"),
    ("docs/rewards.md", r"header of an answer \| (\d+ KiB)", REWARD + "external/http_connection.cc", r"kMostHeaderBytes = ([^;]+);"),
    ("docs/rewards.md", r"header of an answer .*, (\d+ KiB) a line", REWARD + "external/http_connection.cc", r"kLongestHeaderLine = ([^;]+);"),
    ("docs/rewards.md", r"\| its body \| (\d+ MiB)", REWARD + "external/http_post.h", r"kMostAnswerBytes = ([^;]+);"),
    ("docs/rewards.md", r"Answers of more than ([\d,]+) bytes", REWARD + "math_answer.h", r"kMaxMathBytes = ([^;]+);"),
    ("docs/rewards.md", r"or nested more than (\d+) deep", REWARD + "math_form.cc", r"kMaxFormDepth = ([^;]+);"),
    ("docs/environments.md", r"(?:a\sline\sof\smore\sthan|of\sat\smost) (\d+ MiB)", REWARD + "external/line_process.h", r"kMostLineBytes = ([^;]+);"),
    ("docs/environments.md", r"which is the default, to (\d+) \|", ENVIRONMENT + "protocol.h", r"kMostEpisodes = (\d+);"),
    ("docs/environments.md", r"up to (\d+) requests open", ENVIRONMENT + "environment_process.cc", r"kMostOpenRequests = ([^;]+);"),
    ("docs/environments.md", r"at most (\d+) open requests", "src/inference/episodes/endpoint_server.cc", r"kMaxOpenRequests = ([^;]+);"),
    ("docs/environments.md", r"An expression has at most (\d+) bytes", ENVIRONMENT + "arithmetic.cc", r"kMostBytes = ([^;]+);"),
    ("docs/serving.md", r"a head above (\d+ KiB)", "src/core/http/server.h", r"max_head_bytes = ([^;]+);"),
    ("docs/serving.md", r"`most_piece_bytes` \((\d+ MiB)", "src/inference/model_server.cc", r"kMostPieceBytes = ([^;]+);"),
    ("docs/training.md", r"It reads up to ([\d,]+) samples", "src/trainer/recipes/first_config.cc", r"kMaxRead = ([^;]+);"),
    ("docs/training.md", r"where that has at most (\d+),", "src/trainer/recipes/first_config.cc", r"kFinalAnswerTokens = ([^;]+);"),
    ("docs/training.md", r"they get (\d+), so that", "src/trainer/recipes/first_config.cc", r"kReasoningTokens = ([^;]+);"),
]


def number(text):
    """4,096, 2^24, 16 MiB, twenty, 20'000, 16 << 20 or size_t{16} << 20, as a number."""
    text = re.sub(r"[,'{}]|^\w+(?={)", "", text)
    if shifted := re.fullmatch(r"(\d+) << (\d+)", text):
        return int(shifted[1]) << int(shifted[2])
    if power := re.fullmatch(r"(\d+)\^(\d+)", text):
        return int(power[1]) ** int(power[2])
    digits, _, unit = text.lower().partition(" ")
    return (WORDS[digits] if digits in WORDS else int(digits)) * UNITS[unit]
