// Goal: the secret that a folder keeps is there whole or not at all: a start that died while it
// made it blocks no later one, and of starts at the same time all read the same.
#include "cli/cluster/fleet_secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace tandem::cli {
namespace {

constexpr size_t kFileBytes = 65;  // 32 bytes in hexadecimal, and a newline

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string KeptIn(const std::string& folder) {
  const auto secret = FleetSecret::KeepIn(folder);
  EXPECT_OK(secret.status());
  return secret.ok() ? Contents((*secret)->path()) : "";
}

TEST(KeptFleetSecret, IsMadeOnceAndReadableByItsOwnerOnly) {
  const testing::TestFolder folder("kept-secret");
  const std::string made = KeptIn(folder / "new");
  EXPECT_EQ(made.size(), kFileBytes);
  EXPECT_EQ(KeptIn(folder / "new"), made);
  struct stat found = {};
  ASSERT_EQ(stat((folder / "new/fleet-secret").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  const auto files = std::filesystem::directory_iterator(folder / "new");
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "nothing else is left";
}

// What a start left that died between making the file and writing it.
TEST(KeptFleetSecret, IsMadeAgainWhereItsFileIsEmpty) {
  const testing::TestFolder folder("empty-secret");
  std::ofstream(folder / "fleet-secret").flush();
  const std::string made = KeptIn(folder.path());
  EXPECT_EQ(made.size(), kFileBytes);
  EXPECT_EQ(KeptIn(folder.path()), made);
}

TEST(KeptFleetSecret, IsTheSameForStartsAtTheSameTime) {
  constexpr int kStarts = 8, kRounds = 50;
  const testing::TestFolder folder("raced-secret");
  for (int round = 0; round < kRounds; ++round) {
    const std::string path = folder / absl::StrCat(round);
    std::filesystem::create_directory(path);
    if (round % 2 == 1) std::ofstream(path + "/fleet-secret").flush();
    std::vector<std::string> read(kStarts);
    std::vector<std::thread> starts;
    std::atomic<int> away = kStarts;
    for (std::string& each : read)
      starts.emplace_back([&] {
        for (--away; away > 0;) std::this_thread::yield();
        each = KeptIn(path);
      });
    for (std::thread& start : starts) start.join();
    EXPECT_EQ(std::set<std::string>(read.begin(), read.end()).size(), 1u) << "round " << round;
    EXPECT_EQ(read[0].size(), kFileBytes) << "round " << round;
  }
}

}  // namespace
}  // namespace tandem::cli
