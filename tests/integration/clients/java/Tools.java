// Runs several of Kafka's command line tools in one JVM, because starting a JVM costs more than most of the tools do.
// Standard input has one line for each: the class and its arguments as a JSON array. After each tool's output comes a
// line "@@@ exit N".

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

public class Tools {
    // Some tools catch what they throw at their exit and exit again, so the first code is the one that counts.
    static Integer exited;

    public static void main(String[] args) throws Exception {
        Exit.setExitProcedure((code, message) -> {
            if (exited == null) exited = code;
            throw new Error("exit");
        });
        System.setErr(System.out);
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = new ObjectMapper().readValue(line, String[].class);
            System.out.println("@@@ exit " + run(words[0], Arrays.copyOfRange(words, 1, words.length)));
            System.out.flush();
        }
        System.exit(0);
    }

    static int run(String tool, String[] args) throws Exception {
        exited = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) args);
            return 0;
        } catch (InvocationTargetException failure) {
            if (exited != null) return exited;
            failure.getCause().printStackTrace(System.out);
            return 1;
        }
    }
}
