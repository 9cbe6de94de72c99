// Goal: the hashes of a file are those that sha256sum and git give it, and hashing ends when it is
// told to.
#include "cli/pull/file_hash.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(FileHash, IsWhatOtherProgramsSay) {
  const testing::TestFolder folder("file_hash");
  const std::string path = (folder / "file").string();
  std::ofstream(path) << "hello\n";
  ASSERT_OK_AND_ASSIGN(const FileHashes hashes, HashFile(path, [] { return true; }));
  EXPECT_EQ(hashes.sha256, "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
  EXPECT_EQ(hashes.git_blob, "ce013625030ba8dba906f756967f9e9ca394464a");
}

TEST(FileHash, EndsWhenToldTo) {
  const testing::TestFolder folder("file_hash");
  const std::string path = (folder / "file").string();
  std::ofstream(path) << std::string(3 << 20, 'x');
  int asked = 0;
  EXPECT_THAT(HashFile(path, [&] { return ++asked < 2; }).status(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("interrupted")));
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace tandem::cli
