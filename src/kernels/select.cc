#include "base/cpu_features.h"
#include "kernels/table.h"
#include "kernels/tables.h"

namespace cutaway::kernels {
namespace {

// CMakeLists.txt defines CUTAWAY_KERNELS_<ISA> for each table that this target has.
#ifdef CUTAWAY_KERNELS_AVX2
constexpr bool kX86 = true;
#else
constexpr bool kX86 = false;
#endif
#ifdef CUTAWAY_KERNELS_NEON
constexpr bool kArm = true;
#else
constexpr bool kArm = false;
#endif

// The first requirement of the AVX2 table that the processor lacks, or null.
[[maybe_unused]] const char* missing_for_avx2() noexcept {
  const CpuFeatures& cpu = cpu_features();
  if (!cpu.avx2) return "avx2";
  if (!cpu.fma) return "fma";
  if (!cpu.f16c) return "f16c";
  return nullptr;
}

// The same of the AVX-512 table.
[[maybe_unused]] const char* missing_for_avx512() noexcept {
  const CpuFeatures& cpu = cpu_features();
  if (!cpu.avx512f) return "avx512f";
  if (!cpu.avx512bw) return "avx512bw";
  if (!cpu.avx512vl) return "avx512vl";
  if (!cpu.avx512dq) return "avx512dq";
  if (!cpu.avx512_vnni) return "avx512_vnni";
  return missing_for_avx2();
}

// The same of the NEON table.
[[maybe_unused]] const char* missing_for_neon() noexcept {
  const CpuFeatures& cpu = cpu_features();
  if (!cpu.neon) return "neon";
  if (!cpu.dotprod) return "dotprod";
  return nullptr;
}

struct Candidate {
  const char* name;
  const KernelTable* table;  // null: not available
  std::string reason;        // when it is not
};

std::vector<Candidate> candidates() {
  const char* kOtherTarget = "not built for this target";
  std::vector<Candidate> list;
  const auto add = [&](const char* name, const KernelTable* table, bool built,
                       const char* missing) {
    std::string reason;
    if (table == nullptr) {
      reason = built ? std::string("the processor has no ") + missing : kOtherTarget;
    }
    list.push_back({name, table, reason});
  };
  add("avx512", avx512_table(), kX86, missing_for_avx512());
  add("avx2", avx2_table(), kX86, missing_for_avx2());
  add("neon", neon_table(), kArm, missing_for_neon());
  list.push_back({"ref", ref_table(), ""});
  return list;
}

}  // namespace

const KernelTable* avx2_table() noexcept {
#ifdef CUTAWAY_KERNELS_AVX2
  return missing_for_avx2() == nullptr ? &kAvx2Table : nullptr;
#else
  return nullptr;
#endif
}

const KernelTable* avx512_table() noexcept {
#ifdef CUTAWAY_KERNELS_AVX512
  return missing_for_avx512() == nullptr ? &kAvx512Table : nullptr;
#else
  return nullptr;
#endif
}

const KernelTable* neon_table() noexcept {
#ifdef CUTAWAY_KERNELS_NEON
  return missing_for_neon() == nullptr ? &kNeonTable : nullptr;
#else
  return nullptr;
#endif
}

const KernelTable* ref_table() noexcept { return &kRefTable; }

Result<Selection> select_table(const std::string& forced) {
  const std::vector<Candidate> list = candidates();
  std::string names;
  std::string available;
  const Candidate* chosen = nullptr;
  for (const Candidate& candidate : list) {
    names += (names.empty() ? "" : ", ") + std::string(candidate.name);
    if (candidate.table != nullptr) {
      available += (available.empty() ? "" : ", ") + std::string(candidate.name);
    }
    const bool wanted = forced.empty() ? candidate.table != nullptr : forced == candidate.name;
    if (wanted && chosen == nullptr) chosen = &candidate;
  }
  if (chosen == nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "CUTAWAY_FORCE_ISA is \"" + forced +
                     "\", which names no kernel table; names are " + names +
                     " (available here: " + available + ")",
                 "CUTAWAY_FORCE_ISA"};
  }
  if (chosen->table == nullptr) {
    return Error{ErrorCode::kUnsupported,
                 "CUTAWAY_FORCE_ISA is \"" + forced + "\", which cannot run here: " +
                     chosen->reason + "; available here: " + available,
                 "CUTAWAY_FORCE_ISA"};
  }
  Selection selection;
  selection.table = chosen->table;
  for (const Candidate& candidate : list) {
    TableChoice choice;
    choice.name = candidate.name;
    choice.available = candidate.table != nullptr;
    choice.chosen = &candidate == chosen;
    if (choice.chosen) {
      choice.reason = forced.empty() ? "chosen" : "chosen by CUTAWAY_FORCE_ISA";
    } else if (!choice.available) {
      choice.reason = candidate.reason;
    } else {
      choice.reason = "available; " + std::string(chosen->name) +
                      (forced.empty() ? " is preferred" : " is forced");
    }
    selection.choices.push_back(std::move(choice));
  }
  return selection;
}

}  // namespace cutaway::kernels
