// The result of `tandem bench chats` by turn: as a table, as JSON, and as one HTML page.
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_chats/chat_run.h"

namespace tandem::cli {

struct ChatsReport {
  std::vector<std::pair<std::string, std::string>> settings;
  int32_t block_tokens = 0;
  std::vector<ChatTurn> turns;  // of all chats
};

// For a terminal of 80 columns.
std::string FormatChatsTable(const ChatsReport& report);
// One object: "settings", "turns" (a list, by turn), "recomputed" (history tokens, of all turns).
std::string FormatChatsJson(const ChatsReport& report);
// It is well-formed XML too.
std::string FormatChatsHtml(const ChatsReport& report);

}  // namespace tandem::cli
