"""A Textual driver that sends a terminal only the cells that changed; a room of its own, usable without the rest.

    typed.py     what the terminal sends as keys, mouse, pastes; what is none of them is dropped
    sturdy.py    `SturdyDriver`, which reads it, goes on whatever is typed, and ends with its terminal
    driver.py    `CellDiffDriver` in the place of Textual's Linux driver, `RepaintingApp` that chooses it
    celldiff.py  the grid of what the terminal shows, and the differences to the next frame
    sgr.py       styles and the shortest change between two; cursor.py: the shortest move

What it counts on of Textual (pinned in pyproject.toml; `tests/ui/test_textual_fits.py` holds a newer one to it):

1. `App._display` hands each frame to `Driver.write` as one string of rows that begin with `CSI row;column H`, are
   separated by newlines and hold nothing but SGR sequences, OSC 8 links and printable text; each segment ends with a
   reset. Synchronised-update marks, modes and queries come in writes of their own.
2. `LinuxDriver` has `write`, `close`, `start_application_mode`, `process_message`, `_get_terminal_size`, `_size` and
   `_writer_thread`, a thread with `_queue` and `stop()`; a changed window size arrives as SIGWINCH. It reads in
   `_key_thread`, which runs `_run_input_thread` until `exit_event`, and answers SIGCONT in `_sigcont_application`.
3. `App.get_driver_class` names the driver, `App.app_resume_signal` tells of the end of a suspension.
4. `XTermParser` finds the keys of one whole sequence (`_sequence_to_key_events`) and the mouse's (`parse_mouse_code`)
   in the tables `ANSI_SEQUENCES_KEYS` and `FUNCTIONAL_KEYS`; `tests/ui/test_typed.py` compares each with its parser.

What it gives: the terminal shows exactly what the stock driver would have drawn. A write it cannot read is passed on
and the screen taken as unknown, so a surprise costs bytes and never a wrong screen. `LLMTOP_DIFF=0` draws as the stock
driver does, `LLMTOP_SHIFT=0` avoids the sequences that delete and insert characters.

To upgrade Textual: change the pin, run that test, then `tests/ui` and `tests/bench`.
"""
