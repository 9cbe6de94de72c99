// Goal: with --weights as-stored a device holds a file's blocks of four bits as they are: Q4_1
// weights are the file's, rounded to bf16 as products round them, and Q4_K weights as near as
// scales in fp16 allow; gate and up lie row by row alternately.
#include <cmath>
#include <cstring>

#include "common/engine/device/device_weights.h"
#include "kernels/api/device_matrix.h"
#include "kernels/api/device_weight_type.h"
#include "tests/golden/device_engine/device_engines.h"
#include "tests/testing/models.h"

namespace tandem::engine {
namespace {

using kernels::DeviceWeightType;
using model::TensorRole;

float RoundedToBf16(float value) {
  const uint32_t bits = uint32_t{kernels::FloatToBf16(value)} << 16;
  float rounded = 0;
  std::memcpy(&rounded, &bits, sizeof(rounded));
  return rounded;
}

// Row `row` as products see it: an emulated device's memory is the host's.
std::vector<float> RowOf(const DeviceMatrix& matrix, int64_t row) {
  const kernels::DeviceRowBytes bytes = kernels::RowBytesOf(matrix.type, matrix.k);
  kernels::DevicePackArgs args;
  args.type = matrix.type;
  args.k = matrix.k;
  args.values = matrix.values.data() + static_cast<size_t>(row) * bytes.values;
  args.scales = matrix.scales.data() + static_cast<size_t>(row) * bytes.scales;
  std::vector<float> values(static_cast<size_t>(matrix.k));
  kernels::UnpackDeviceRow(args, values.data());
  return values;
}

// Every 97th row of `tensor`, which is row first + i · step of the matrix.
void ExpectStored(const model::StoredTensor& tensor, const DeviceMatrix& matrix, int64_t first,
                  int64_t step) {
  const bool exact = model::HasInt4Blocks(tensor);
  ASSERT_TRUE(exact || model::HasQ4KBlocks(tensor)) << tensor.name;
  ASSERT_EQ(matrix.type, DeviceWeightType::kInt4) << tensor.name;
  for (int64_t row = 0; row < tensor.rows; row += 97) {
    std::vector<float> stored(static_cast<size_t>(tensor.columns));
    model::ReadRows(tensor, row, 1, absl::MakeSpan(stored));
    float most = 0;
    for (float value : stored) most = std::max(most, std::abs(value));
    const std::vector<float> values = RowOf(matrix, first + row * step);
    for (size_t i = 0; i < stored.size(); ++i) {
      if (exact) {
        ASSERT_EQ(values[i], RoundedToBf16(stored[i]))
            << tensor.name << " row " << row << ", " << i;
      } else {
        // Scale · 15 and offset each lose 2^-11 of themselves; bf16 loses 2^-8 of the weight.
        ASSERT_NEAR(values[i], stored[i], 0x1p-8 * std::abs(stored[i]) + 0x1p-9 * most)
            << tensor.name << " row " << row << ", " << i;
      }
    }
  }
}

void ExpectStoredWeights(const std::string& path) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(path));
  const auto device = kernels::emulated::NewEmulatedDevice(3);
  ASSERT_OK_AND_ASSIGN(const auto stream, device->NewStream());
  DeviceWeightsOptions options;
  options.context_tokens = 64;
  options.format = DeviceWeightFormat::kAsStored;
  ASSERT_OK_AND_ASSIGN(const DeviceWeights weights,
                       LoadDeviceWeights(*checkpoint, options, *device, *stream, {}));
  int checked = 0;
  for (int layer = 0; layer < checkpoint->config().num_layers; layer += 3) {
    const DeviceLayerWeights& w = weights.layers[static_cast<size_t>(layer)];
    const auto find = [&](TensorRole role) { return *checkpoint->Find(role, layer); };
    if (w.o.type == DeviceWeightType::kInt4) {
      ExpectStored(find(TensorRole::kO), w.o, 0, 1);
      ++checked;
    }
    if (w.gate_up.type == DeviceWeightType::kInt4) {
      ExpectStored(find(TensorRole::kGate), w.gate_up, 0, 2);
      ExpectStored(find(TensorRole::kUp), w.gate_up, 1, 2);
      ++checked;
    }
    if (w.down.type == DeviceWeightType::kInt4) {
      ExpectStored(find(TensorRole::kDown), w.down, 0, 1);
      ++checked;
    }
  }
  EXPECT_GT(checked, 0) << "no matrix in blocks of four bits";
}

TEST(DeviceStoredWeights, OfQ4_1AreTheFiles) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  ExpectStoredWeights(path);
}

TEST(DeviceStoredWeights, OfQ4_KAreNearlyTheFiles) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kGemma3File);
  ExpectStoredWeights(path);
}

}  // namespace
}  // namespace tandem::engine
