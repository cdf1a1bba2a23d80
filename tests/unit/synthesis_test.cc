// Files with random weights: the shapes are the published ones, every type loads and runs, and the
// bytes depend on the request alone.
#include "cutaway/synthesis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numbers>
#include <set>

#include "base/clock.h"
#include "base/hash.h"
#include "cutaway/engine.h"
#include "formats/gguf.h"
#include "kernels/layout.h"
#include "model/random_rows.h"
#include "ops/rope.h"
#include "tests/golden/safetensors.h"

namespace cutaway {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

class Synthesis : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("cutaway-synth-" + new_ulid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  bool empty() const { return fs::is_empty(folder_); }

  SynthesisRequest request(const std::string& shape, const std::string& type, int64_t layers,
                           const std::string& name = "m.gguf") const {
    SynthesisRequest out{shape, type, path(name)};
    out.layers = layers;
    out.overwrite = true;
    return out;
  }
  static SynthesisResult make(const SynthesisRequest& request) {
    auto made = synthesize(request, {});
    EXPECT_TRUE(made.ok()) << made.error().message;
    return made.ok() ? *made : SynthesisResult{};
  }
  static std::string hash(const std::string& path) {
    auto file = InputFile::open(path);
    EXPECT_TRUE(file.ok());
    std::vector<uint8_t> bytes(file->size());
    EXPECT_TRUE(file->read(0, bytes).ok());
    return xxh3_128(bytes.data(), bytes.size()).hex();
  }
  static Error error_of(const SynthesisRequest& request) {
    auto made = synthesize(request, {});
    EXPECT_FALSE(made.ok());
    return made.ok() ? Error{} : made.error();
  }

  // The taps of a few tokens.
  std::map<std::string, testing::SafeTensor> taps(const std::string& file,
                                                  std::vector<std::string> names) {
    auto engine = Engine::create({2, ""});
    EXPECT_TRUE(engine.ok());
    auto model = (*engine)->load(file, {});
    EXPECT_TRUE(model.ok()) << model.error().message;
    if (!model.ok()) return {};
    CaptureRequest capture;
    capture.tokens = std::vector<int32_t>{72, 105, 300, 4000, 256};
    capture.taps = std::move(names);
    capture.output = path("taps.safetensors");
    auto captured = (*model)->capture(capture, {});
    EXPECT_TRUE(captured.ok()) << captured.error().message;
    return testing::read_safetensors(capture.output);
  }
  static double rms(const testing::SafeTensor& tensor) {
    double sum = 0;
    for (size_t i = 0; i < tensor.elements(); ++i) {
      sum += static_cast<double>(tensor.floats()[i]) * tensor.floats()[i];
    }
    return std::sqrt(sum / static_cast<double>(tensor.elements()));
  }

  fs::path folder_;
};

// Parameters as the makers' files count them.
TEST_F(Synthesis, ParametersAreThePublishedOnes) {
  const std::map<std::string, uint64_t> published = {
      {"smollm2-135m", 134'515'008},
      {"smollm2-360m", 361'821'120},
      {"smollm2-1.7b", 1'711'376'384},
      {"tinyllama-1.1b", 1'100'048'384},
      {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.2-3b", 3'212'749'824},
      {"llama-3.1-8b", 8'030'261'248},
      {"llama-2-7b", 6'738'415'616},
      {"mistral-7b", 7'248'023'552},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},
      {"qwen1.5-moe-a2.7b", 14'315'784'192},
      {"mixtral-8x7b", 46'702'792'704},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"gemma-2-2b", 2'614'341'888},
      {"gemma-2-9b", 9'241'705'984},
      {"gemma-3-270m", 268'098'176},
      {"gemma-3-1b", 999'885'952},
      {"olmo-2-1b", 1'484'916'736},
      {"olmo-2-7b", 7'298'617'344},
      {"smollm3-3b", 3'075'098'624},
      {"granite-3.3-2b", 2'533'539'840},
      {"phi-3-mini-4k", 3'821'079'552},
      {"phi-4", 14'659'507'200},
      {"gpt2", 124'439'808},
      {"gpt2-xl", 1'557'611'200},
  };
  const std::vector<SynthesisShape> shapes = synthesis_shapes();
  EXPECT_EQ(shapes.size(), published.size());
  for (const SynthesisShape& shape : shapes) {
    ASSERT_TRUE(published.contains(shape.name)) << shape.name;
    EXPECT_EQ(shape.parameters, published.at(shape.name)) << shape.name;
    ASSERT_EQ(shape.bytes.size(), synthesis_types().size());
    EXPECT_EQ(shape.bytes.front().first, "F32");
    // F32 alone has four bytes for each; Llama 3 has up to 64 divisors besides.
    EXPECT_LE(shape.bytes.front().second - 4 * shape.parameters, 64u * 4) << shape.name;
    EXPECT_EQ(shape.d_model % 32, 0);
  }
}

// Whether this build can compute with every tensor of a file; reading it can any.
bool has_products(const std::string& file) {
  auto model = formats::open_gguf(file);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::all_of((*model)->tensors.begin(), (*model)->tensors.end(),
                     [](const auto& t) { return kernels::layout_of(t.dtype).has_value(); });
}

// A layer of a mixture at its real width: the file loads, routers stay F32, and its experts are
// used.
TEST_F(Synthesis, AMixtureRoutesOverAllItsExperts) {
  make(request("qwen1.5-moe-a2.7b", "Q4_0", 1));
  auto file = formats::open_gguf(path("m.gguf"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->find_tensor("blk.0.ffn_gate_inp.weight")->dtype, DType::kF32);
  EXPECT_EQ((*file)->find_tensor("blk.0.ffn_down_exps.weight")->dtype, DType::kQ4_0);
  EXPECT_EQ((*file)->find_tensor("blk.0.ffn_down_exps.weight")->shape, (Shape{60, 2048, 1408}));
  auto taps = this->taps(path("m.gguf"), {"blocks.0.mlp.hook_expert_indices",
                                          "blocks.0.mlp.hook_router_logits", "logits"});
  const testing::SafeTensor& experts = taps.at("blocks.0.mlp.hook_expert_indices");
  EXPECT_EQ(experts.shape, (std::vector<int64_t>{1, 5, 4}));
  EXPECT_EQ(taps.at("blocks.0.mlp.hook_router_logits").shape, (std::vector<int64_t>{1, 5, 60}));
  std::set<float> met(experts.floats(), experts.floats() + experts.elements());
  // Attention over random weights is nearly even, so tokens resemble one another; not all alike.
  EXPECT_GT(met.size(), 4u);
  EXPECT_GT(rms(taps.at("logits")), 0.1);
}

TEST_F(Synthesis, EveryTypeLoadsAndWritesFiniteNumbers) {
  for (const std::string& type : synthesis_types()) {
    const SynthesisResult made = make(request("smollm2-135m", type, 2));
    EXPECT_EQ(made.bytes, fs::file_size(path("m.gguf"))) << type;
    EXPECT_EQ(made.type, type);
    if (!has_products(path("m.gguf"))) continue;
    auto taps = this->taps(path("m.gguf"), {"logits"});
    ASSERT_TRUE(taps.contains("logits")) << type;
    const testing::SafeTensor& logits = taps.at("logits");
    EXPECT_EQ(logits.shape, (std::vector<int64_t>{1, 5, 49152})) << type;
    for (size_t i = 0; i < logits.elements(); ++i) ASSERT_TRUE(std::isfinite(logits.floats()[i]));
    EXPECT_GT(rms(logits), 0.5) << type;
    EXPECT_LT(rms(logits), 2) << type;
  }
}

// Shapes with their own head, Llama 3's divisors, and biases.
TEST_F(Synthesis, EveryKindOfShapeRuns) {
  for (const std::string shape : {"qwen2.5-0.5b", "tinyllama-1.1b", "llama-3.2-1b"}) {
    const SynthesisResult made = make(request(shape, "Q4_0", 1));
    EXPECT_EQ(made.layers, 1);
    auto taps = this->taps(path("m.gguf"), {"logits"});
    ASSERT_TRUE(taps.contains("logits")) << shape;
    EXPECT_GT(rms(taps.at("logits")), 0.5) << shape;
    EXPECT_LT(rms(taps.at("logits")), 2) << shape;
  }
}

TEST_F(Synthesis, ActivationsStayOfOrderOneThroughAllLayers) {
  make(request("smollm2-135m", "Q4_1", 0));
  auto taps = this->taps(path("m.gguf"), {"blocks.0.hook_resid_post", "blocks.15.hook_resid_post",
                                          "blocks.29.hook_resid_post", "blocks.29.hook_mlp_out"});
  ASSERT_EQ(taps.size(), 4u);
  for (const auto& [name, tensor] : taps) {
    EXPECT_GT(rms(tensor), 0.05) << name;
    EXPECT_LT(rms(tensor), 10) << name;
  }
}

TEST_F(Synthesis, BytesDependOnTheRequestAlone) {
  SynthesisRequest one = request("smollm2-135m", "Q4_1", 2, "one.gguf");
  one.threads = 1;
  SynthesisRequest two = request("smollm2-135m", "q4_1", 2, "two.gguf");
  two.threads = 2;
  SynthesisRequest other = request("smollm2-135m", "Q4_1", 2, "other.gguf");
  other.seed = 1;
  make(one), make(two), make(other);
  EXPECT_EQ(hash(one.output), hash(two.output));
  EXPECT_NE(hash(one.output), hash(other.output));

  // Layer 1 is the same one in a file of two layers and of three.
  const SynthesisRequest three = request("smollm2-135m", "Q4_1", 3, "three.gguf");
  make(three);
  const auto few = formats::open_gguf(one.output), more = formats::open_gguf(three.output),
             seeded = formats::open_gguf(other.output);
  ASSERT_TRUE(few.ok() && more.ok() && seeded.ok());
  for (const StoredTensor& tensor : (*few)->tensors) {
    const StoredTensor* same = (*more)->find_tensor(tensor.name);
    ASSERT_NE(same, nullptr);
    EXPECT_EQ(*(*few)->bytes_of(tensor), *(*more)->bytes_of(*same)) << tensor.name;
    const StoredTensor* drawn = (*seeded)->find_tensor(tensor.name);
    EXPECT_NE(*(*few)->bytes_of(tensor), *(*seeded)->bytes_of(*drawn))
        << tensor.name << " does not depend on the seed";
  }
}

// Near N(0, spread); rows and tensors differ; and the bits are those of every other machine.
TEST(RandomRows, AreNormalIndependentAndPinned) {
  constexpr int64_t kN = 1 << 16;
  std::vector<float> a(kN), b(kN), c(kN);
  const model::RandomTensor tensor(7, "blk.0.attn_q.weight"), other(7, "blk.1.attn_q.weight");
  tensor.fill(0, 0, kN, 0, 0.5f, a.data());
  tensor.fill(1, 0, kN, 0, 0.5f, b.data());
  other.fill(0, 0, kN, 0, 0.5f, c.data());
  double sum = 0, square = 0, fourth = 0, with_b = 0, with_c = 0, with_next = 0;
  for (size_t i = 0; i < kN; ++i) {
    const double x = a[i] / 0.5;
    sum += x, square += x * x, fourth += x * x * x * x;
    with_b += x * b[i] / 0.5, with_c += x * c[i] / 0.5;
    with_next += x * a[(i + 1) % kN] / 0.5;
  }
  const double five_sigma = 5 / std::sqrt(static_cast<double>(kN));
  EXPECT_LT(std::fabs(sum / kN), five_sigma);
  EXPECT_LT(std::fabs(square / kN - 1), 2 * five_sigma);
  EXPECT_NEAR(fourth / kN, 2.7, 0.15);  // 3 − 1.2/4; a uniform's is 1.8
  EXPECT_LT(std::fabs(with_b / kN), five_sigma);
  EXPECT_LT(std::fabs(with_c / kN), five_sigma);
  EXPECT_LT(std::fabs(with_next / kN), five_sigma);

  // A part of a row is what it is in the whole row.
  std::vector<float> part(64);
  tensor.fill(0, 1000, 64, 0, 0.5f, part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), a.begin() + 1000));
  EXPECT_EQ(xxh3_128(a.data(), a.size() * sizeof(float)).hex(), "527243e55d08e664c48970f2448c6805");
}

// The definition by wavelengths, as Llama 3's reference code has it.
TEST(Llama3Divisors, FollowTheWavelengths) {
  const std::vector<float> divisors = ops::llama3_divisors(64, 500000, 32, 1, 4, 8192);
  ASSERT_EQ(divisors.size(), 32u);
  for (size_t i = 0; i < 32; ++i) {
    const double frequency = std::pow(500000.0, -static_cast<double>(2 * i) / 64);
    const double wavelength = 2 * std::numbers::pi / frequency;
    double scaled = frequency;
    if (wavelength > 8192.0 / 1) {
      scaled = frequency / 32;
    } else if (wavelength > 8192.0 / 4) {
      const double smooth = (8192 / wavelength - 1) / (4.0 - 1);
      scaled = (1 - smooth) * frequency / 32 + smooth * frequency;
    }
    EXPECT_NEAR(divisors[i], frequency / scaled, 1e-4) << i;
  }
  EXPECT_EQ(divisors.front(), 1);
  EXPECT_EQ(divisors.back(), 32);
}

TEST_F(Synthesis, WrongRequestsNameWhatWouldDo) {
  Error error = error_of(request("llama-3.1-8", "Q4_1", 1));
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.field, "shape");
  EXPECT_THAT(error.message, HasSubstr("did you mean 'llama-3.1-8b'"));
  EXPECT_THAT(error.message, HasSubstr("qwen2.5-7b"));
  error = error_of(request("smollm2-135m", "Q4_2", 1));
  EXPECT_EQ(error.field, "type");
  EXPECT_THAT(error.message, HasSubstr("Q8_0"));
  error = error_of(request("smollm2-135m", "Q4_1", 31));
  EXPECT_EQ(error.field, "layers");
  EXPECT_THAT(error.message, HasSubstr("1 to the 30 of smollm2-135m"));
  EXPECT_EQ(error_of(request("smollm2-135m", "Q4_1", -1)).field, "layers");
  SynthesisRequest bad = request("smollm2-135m", "Q4_1", 1);
  bad.threads = 1025;
  EXPECT_EQ(error_of(bad).field, "threads");
  bad = request("smollm2-135m", "Q4_1", 1);
  bad.output.clear();
  EXPECT_EQ(error_of(bad).field, "output");
  bad.output = folder_.string();
  EXPECT_THAT(error_of(bad).message, HasSubstr("not a regular file"));
  bad.output = path("none/m.gguf");
  EXPECT_THAT(error_of(bad).message, HasSubstr("No such file"));
  EXPECT_TRUE(empty());
}

TEST_F(Synthesis, AFileThatIsThereStaysUnlessAsked) {
  SynthesisRequest asked = request("smollm2-135m", "Q4_0", 1);
  asked.overwrite = false;
  std::ofstream(asked.output) << "mine";
  EXPECT_THAT(error_of(asked).message, HasSubstr("exists"));
  EXPECT_EQ(fs::file_size(asked.output), 4u);
  asked.overwrite = true;
  const SynthesisResult made = make(asked);
  EXPECT_EQ(made.bytes, fs::file_size(asked.output));
}

TEST_F(Synthesis, CancellingLeavesNothing) {
  SynthesisRequest asked = request("smollm2-135m", "Q4_0", 1);
  int calls = 0;
  auto made = synthesize(asked, [&](const Progress& progress) {
    EXPECT_EQ(progress.what, "write");
    EXPECT_LE(progress.done, progress.total);
    return ++calls < 2;
  });
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(empty());
  // The old file survives a replacement that does not come.
  std::ofstream(asked.output) << "mine";
  EXPECT_FALSE(synthesize(asked, [](const Progress&) { return false; }).ok());
  EXPECT_EQ(fs::file_size(asked.output), 4u);
}

TEST_F(Synthesis, ProgressEndsAtTheWhole) {
  uint64_t done = 0, total = 1;
  auto made = synthesize(request("smollm2-135m", "Q8_0", 1), [&](const Progress& progress) {
    EXPECT_GE(progress.done, done);
    done = progress.done, total = progress.total;
    return true;
  });
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(done, total);
  EXPECT_LE(total, made->bytes);
}

}  // namespace
}  // namespace cutaway
