// The subcommands. Each takes the program's own argc and argv (argv[1] is its name) and returns the
// exit status.
#pragma once

namespace cutaway::cli {

int run_command(int argc, char** argv);
int tokenize_command(int argc, char** argv);
int capture_command(int argc, char** argv);
int info_command(int argc, char** argv);
int pull_command(int argc, char** argv);
int list_command(int argc, char** argv);
int rm_command(int argc, char** argv);
int bench_command(int argc, char** argv);
int synth_command(int argc, char** argv);
int eval_command(int argc, char** argv);
int replay_command(int argc, char** argv);
int quantize_command(int argc, char** argv);
int report_command(int argc, char** argv);
int lens_command(int argc, char** argv);
int attention_command(int argc, char** argv);
int imatrix_command(int argc, char** argv);

}  // namespace cutaway::cli
